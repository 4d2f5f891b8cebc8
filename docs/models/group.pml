/* Tasks that move together, or not at all: the protocol of docs/migration_groups.md, checked by SPIN for every order of
 * its steps and every crash. tools/check/models.py runs it. How one task moves is migration.pml's: what it shows is
 * taken as given here.
 *
 * N tasks, each with a source, a destination, and the source's record; one coordinator; the state of the group, which
 * is a file, and outlives everybody. At most CRASHES processes end at any moment: sources, destinations and the
 * coordinator. Where a source has ended, another process of its machine reads its record, and acts in its place.
 * An action is one `::` below, and takes place as a whole.
 *
 * Checked: no task runs at both ends; no task runs at its source once one has run at its destination; a source gives
 * up its memory only if the destination owned the task; when nothing more can happen, nobody is in doubt, and without a
 * crash all tasks run, at one side.
 *
 * Each of these macros takes one rule away, and SPIN finds what goes wrong then:
 *   NO_INTENTS     the group commits though not all intents are on record
 *   OVERWRITTEN    an abort replaces a commit
 *   OWN_DECISION   a task with its intent on record commits at its destination, whatever the group's state is
 *   RESUMED        a task whose destination ended before it had it runs on at its source, as one without a group does
 *   FORGETS        a task that is sent again, and refused, runs on, as one without a group does
 *   PATIENT        nobody aborts a group whose coordinator has ended
 */

#ifndef N
#define N 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif

/* The group. */
#define G_OPEN 0
#define G_STOPPING 1
#define G_COMMITTED 2
#define G_ABORTED 3
byte group = G_OPEN;

/* A source. */
#define S_ENDED 0     /* its process has ended, or has given up the memory */
#define S_COPIES 1    /* the task runs, and is copied */
#define S_READY 2     /* the same; it could be stopped */
#define S_STOPPED 3   /* the task is stopped, and sealed at the destination */
#define S_INTENT 4    /* the intent is on record */
#define S_COMMITS 5   /* the same; it knows that the group has committed */
#define S_LEFT 6      /* the group has moved without it: it must not run here */
#define S_RUNS 7      /* the task runs, and moves no more */
#define S_AGAIN 8     /* left behind, and sent again, with an intent on record that names no group */
byte source[N];
/* Its record. */
#define R_OWNER 0
#define R_INTENT 1
#define R_RELEASED 2
#define R_LEFT 3
#define R_ALONE 4
byte record[N];

/* A destination. */
#define D_NONE 0      /* no process, or none that receives it */
#define D_RECEIVES 1
#define D_AWAITS 2    /* awaits the commit */
#define D_OWNED 3     /* owner on record, not returned by receive() yet */
#define D_RUNS 4
#define D_DIED 5      /* it ran there, and its process has ended */
byte destination[N];
bool owned[N];        /* its record says that it is the owner */
bool was_owner[N];    /* ... or once said so (for the checks) */
bool has_run[N];

byte crashes = 0;
bool coordinates = true;

#define RUNS_HERE(i) (source[i] == S_COPIES || source[i] == S_READY || source[i] == S_RUNS)

inline check() {
  stays = false; moved = false;
  for (k : 0 .. N - 1) {
    assert(!(RUNS_HERE(k) && destination[k] == D_RUNS));
    stays = stays || RUNS_HERE(k);
    moved = moved || has_run[k]
  }
  assert(!(stays && moved));
  k = 0; stays = false; moved = false
}

inline abort_group() {
  if
  :: group == G_OPEN || group == G_STOPPING -> group = G_ABORTED
#ifdef OVERWRITTEN
  :: group == G_COMMITTED -> group = G_ABORTED
#endif
  :: else
  fi
}

/* Whether this source, or another process in its place, acts on a record that says intent. */
#define IN_DOUBT(i) (source[i] == S_INTENT || source[i] == S_COMMITS || (source[i] == S_ENDED && record[i] == R_INTENT))
#define KNOWS(i) (source[i] == S_COMMITS || (source[i] == S_ENDED && group == G_COMMITTED))
#define ALONE(i) (source[i] == S_AGAIN || (source[i] == S_ENDED && record[i] == R_ALONE))
/* The destination's record, and whether it receives the task, say that it can never own it. */
#define REFUSES(i) (!owned[i] && destination[i] == D_NONE)

proctype task(byte i) {
  byte k;
  bool stays, moved;
end:
  do
  /* ---- the source ---- */
  :: atomic { source[i] == S_COPIES && destination[i] == D_RECEIVES ->
     source[i] = S_READY;
     check() }
  :: atomic { source[i] == S_READY && (group == G_STOPPING || group == G_COMMITTED) && destination[i] == D_RECEIVES ->
     source[i] = S_STOPPED;
     destination[i] = D_AWAITS;
     check() }
  /* It fails, is cancelled, finds its destination gone or the group aborted: the task goes on. It aborts the group, if
   * it can reach it. */
  :: atomic { source[i] == S_COPIES || source[i] == S_READY || source[i] == S_STOPPED ->
     source[i] = S_RUNS;
     if
     :: destination[i] == D_RECEIVES || destination[i] == D_AWAITS -> destination[i] = D_NONE
     :: else
     fi;
     if
     :: abort_group()
     :: true
     fi;
     check() }
  :: atomic { source[i] == S_STOPPED && destination[i] == D_AWAITS ->
     source[i] = S_INTENT;
     record[i] = R_INTENT;
     check() }
  :: atomic { source[i] == S_INTENT && group == G_COMMITTED ->
     source[i] = S_COMMITS;
     check() }
  :: atomic { IN_DOUBT(i) && source[i] != S_COMMITS && group == G_ABORTED ->
     record[i] = R_OWNER;
     if
     :: source[i] == S_INTENT -> source[i] = S_RUNS
     :: else
     fi;
     if
     :: destination[i] == D_AWAITS -> destination[i] = D_NONE
     :: else
     fi;
     check() }
#ifndef PATIENT
  /* It has waited for too long, or its destination is gone. */
  :: atomic { IN_DOUBT(i) && source[i] != S_COMMITS && (group == G_OPEN || group == G_STOPPING) ->
     abort_group();
     check() }
#endif
#ifdef OVERWRITTEN
  :: atomic { source[i] == S_INTENT && group == G_COMMITTED -> abort_group(); check() }
#endif
  /* The commit arrives. */
#ifdef OWN_DECISION
  :: atomic { IN_DOUBT(i) && destination[i] == D_AWAITS ->
#else
  :: atomic { IN_DOUBT(i) && KNOWS(i) && destination[i] == D_AWAITS ->
#endif
     destination[i] = D_OWNED;
     owned[i] = true;
     was_owner[i] = true;
     check() }
  /* Its reply, or that to a query. */
  :: atomic { IN_DOUBT(i) && owned[i] && (destination[i] == D_OWNED || destination[i] == D_RUNS || destination[i] == D_DIED) ->
     assert(was_owner[i]);
     source[i] = S_ENDED;
     record[i] = R_RELEASED;
     check() }
  /* A destination that ended before receive() returned the task: another process there refuses. */
  :: atomic { IN_DOUBT(i) && KNOWS(i) && (REFUSES(i) || (owned[i] && destination[i] == D_NONE)) ->
     owned[i] = false;
     if
     :: source[i] == S_COMMITS ->
#ifdef RESUMED
        source[i] = S_RUNS;
        record[i] = R_OWNER
#else
        source[i] = S_LEFT;
        record[i] = R_LEFT
#endif
     :: else -> record[i] = R_LEFT /* the memory has ended with its process */
     fi;
     check() }
  /* It is sent again, as one that moves by itself: with an intent that only the destination decides about. */
  :: atomic { source[i] == S_LEFT && destination[i] == D_NONE ->
     source[i] = S_AGAIN;
     record[i] = R_ALONE;
     destination[i] = D_AWAITS;
     check() }
  :: atomic { ALONE(i) && destination[i] == D_AWAITS ->
     destination[i] = D_OWNED;
     owned[i] = true;
     was_owner[i] = true;
     check() }
  :: atomic { ALONE(i) && owned[i] && destination[i] != D_NONE ->
     source[i] = S_ENDED;
     record[i] = R_RELEASED;
     check() }
  :: atomic { ALONE(i) && destination[i] == D_NONE ->
     owned[i] = false;
     if
#ifdef FORGETS
     :: source[i] == S_AGAIN -> source[i] = S_RUNS; record[i] = R_OWNER
#else
     :: source[i] == S_AGAIN -> source[i] = S_LEFT; record[i] = R_LEFT
#endif
     :: source[i] == S_ENDED -> record[i] = R_LEFT
     fi;
     check() }
  /* ---- the destination ---- */
  :: atomic { destination[i] == D_OWNED ->
     destination[i] = D_RUNS;
     has_run[i] = true;
     check() }
  /* It has waited for too long. */
  :: atomic { crashes < CRASHES && (destination[i] == D_RECEIVES || destination[i] == D_AWAITS) ->
     crashes++;
     destination[i] = D_NONE;
     check() }
  /* ---- crashes ---- */
  :: atomic { crashes < CRASHES && source[i] != S_ENDED ->
     crashes++;
     source[i] = S_ENDED;
     if
     :: record[i] != R_INTENT && destination[i] == D_RECEIVES -> destination[i] = D_NONE
     :: else
     fi;
     check() }
  :: atomic { crashes < CRASHES && (destination[i] == D_OWNED || destination[i] == D_RUNS) ->
     crashes++;
     destination[i] = (destination[i] == D_RUNS -> D_DIED : D_NONE);
     check() }
  od
}

#define ALL3(p, v) (p[0] v && p[1] v && p[2] v)
#if N == 3
#define ALL(p, v) ALL3(p, v)
#else
#define ALL(p, v) (ALL3(p, v) && p[3] v)
#endif

proctype coordinator() {
  byte k;
  bool stays, moved;
end:
  do
  :: atomic { coordinates && group == G_OPEN && ALL(source, == S_READY) ->
     group = G_STOPPING;
     check() }
#ifdef NO_INTENTS
  :: atomic { coordinates && group == G_STOPPING ->
#else
  :: atomic { coordinates && group == G_STOPPING && ALL(record, == R_INTENT) ->
#endif
     group = G_COMMITTED;
     check() }
  :: atomic { coordinates && (group == G_OPEN || group == G_STOPPING) -> abort_group(); check() }
  :: atomic { coordinates && crashes < CRASHES ->
     crashes++;
     coordinates = false;
     check() }
  od
}

/* Nothing more can happen. */
proctype at_rest() {
  byte k, here, there;
end:
  timeout;
  for (k : 0 .. N - 1) {
    assert(!IN_DOUBT(k) && !ALONE(k) && source[k] != S_LEFT && source[k] != S_STOPPED);
    here = here + RUNS_HERE(k);
    there = there + (destination[k] == D_RUNS)
  }
  assert(crashes > 0 || here == N || there == N)
}

init {
  byte k;
  atomic {
    for (k : 0 .. N - 1) {
      source[k] = S_COPIES;
      destination[k] = D_RECEIVES;
      run task(k)
    }
    run coordinator();
    run at_rest()
  }
}
