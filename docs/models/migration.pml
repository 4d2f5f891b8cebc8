/* Who owns a task that moves between machines: the protocol of docs/migration_protocol.md, checked by SPIN for
 * every order of its steps, lost messages, crashes and failed writes. tools/check/models.py runs it.
 *
 * Three machines, at most SESSIONS (3, or 4) migrations one after another or at once, at most CRASHES crashes.
 * A crash ends the process that has the task or receives it; another process that answers is there
 * at once. What a record says survives. An action is one `::` below, and takes place as a whole.
 *
 * Checked: at most one machine runs the task; a source gives up its memory only if the destination
 * owned the task; when nothing more can happen, nobody is in doubt; without a crash, exactly one
 * machine runs the task.
 *
 * Each of these macros takes one rule away, and SPIN finds what goes wrong then:
 *   NO_LIST        records do not list transfers: only the last session is known
 *   ANY_MACHINE    any machine's answer is believed, and one may have copied records, or lie
 *   NO_OFFER       an offer is not on record before the commit
 *   LOCKED_READS   a record that a process holds is not read, so nobody is told of earlier transfers
 *   UNLOCKED       an intent that cannot be taken back is left unlocked
 *   SAME_EPOCH     with RESTORED: a source that was refused takes the next epoch, as any owner
 *   UNCHECKED      with DELETIONS: a process whose lock file was deleted goes on as if it held the lock
 * DELETIONS is how often the file is deleted by which a process holds a record. Then another process on that
 * machine can hold the record, too, and answers or resolves by what it says.
 * RESTORED lets the destination's records be replaced by an older copy. Then two machines may run the
 * task, and it is checked that their epochs differ, if only one transfer is refused.
 * TRACE restricts the model to the steps of a real run: events[] and EVENTS are generated, and the
 * run is accepted if the end of the list is reached (an assertion that fails).
 */

#define N 3
#ifndef SESSIONS
#define SESSIONS 3
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#define NOBODY 255

/* A record: its state, its epoch, the session that wrote it, and what it says of each transfer. */
#define S_NONE 0
#define S_OWNER 1
#define S_RUNNING 2
#define S_INTENT 3
#define S_RELEASED 4
byte state[N];
byte epoch[N];
byte written_by[N];
#define T_UNKNOWN 0
#define T_OFFERED 1
#define T_COMMITTED 2
#define T_REFUSED 3
byte transfer[N * SESSIONS];
#define TRANSFER(m, s) transfer[(m) * SESSIONS + (s)]

/* What the process that has the task does, or receives it. */
#define P_NONE 0
#define P_RUNS 1      /* the task runs */
#define P_COPIES 2    /* source: the task runs and is copied */
#define P_STOPPED 3   /* source: the task is stopped, and sealed at the destination */
#define P_DOUBT 4     /* source: the intent is on record */
#define P_RECEIVES 5  /* destination, until the seal */
#define P_AWAITS 6    /* destination: awaits the commit */
#define P_OWNED 7     /* destination: owner on record, not returned by receive() yet */
byte process[N];
byte session[N];       /* the session that it sends or receives, or received last */
byte runs_under[N];    /* the epoch of a task that runs */
bool kept_locked[N];   /* its record says intent, and it runs: the lock is kept */
#ifdef DELETIONS
byte deletions = 0;
bool lost[N];          /* its lock file was deleted since it last wrote the record */
bool changed[N];       /* since then another process has changed the record */
#define LOST(m) lost[m]
#ifdef UNCHECKED
#define HOLDS(m) true
#else
#define HOLDS(m) (!changed[m])
#endif
#define BY_ANOTHER(m) if :: lost[m] -> changed[m] = true :: else fi
#define WROTE(m) lost[m] = false; changed[m] = false
#else
#define LOST(m) false
#define HOLDS(m) true
#define BY_ANOTHER(m) skip
#define WROTE(m) skip
#endif
bool received[N * SESSIONS];  /* sessions that this process has received: it remembers them */

/* A session. */
byte sessions = 0;
byte from[SESSIONS];
byte to[SESSIONS];
byte new_epoch[SESSIONS];
bool commit_sent[SESSIONS];   /* a commit is under way; it may arrive late, twice, or never */
bool reply_sent[SESSIONS];    /* the reply to it */
bool was_owner[SESSIONS];     /* the destination has owned the task (for the checks) */

byte crashes = 0;
bool calm = false; /* no more crashes come */
#ifdef RESTORED
byte copy_state = NOBODY, copy_epoch, copy_by, copy_of;
byte copy_transfer[SESSIONS];
bool restored = false;
byte refusals = 0;
#define MAY_KEEP (refusals == 0)
#else
#define MAY_KEEP true
#endif

/* Events of a real run: the step, and the machine. */
#define E_OFFERED 1
#define E_AWAITS 2
#define E_INTENT 3
#define E_OWNER 4
#define E_RUNNING 5
#define E_RELEASED 6
#define E_KEPT 7
#define E_CRASH 8
#define E_DELETED 9
#ifdef TRACE
#include "events.h"
byte next = 0;
#define MAY_CRASH(m) true
#define MAY(e, m) (next < EVENTS && events[next] == (e) * N + (m))
#define DID next++; assert(next < EVENTS)
#else
#define MAY_CRASH(m) (process[m] != P_NONE)
#define MAY(e, m) true
#define DID skip
#endif

#define RUNS(m) (process[m] == P_RUNS || process[m] == P_COPIES)
#define HAS_LOCK(m) (kept_locked[m] || process[m] >= P_COPIES || (process[m] == P_RUNS && state[m] == S_RUNNING))
#define LOCKED(m) (HAS_LOCK(m) && !LOST(m))

inline check() {
  s = 0; i = 0; reply = 0;
#ifdef RESTORED
  assert(!(RUNS(0) && RUNS(1) && runs_under[0] == runs_under[1]));
  assert(!(RUNS(0) && RUNS(2) && runs_under[0] == runs_under[2]));
  assert(!(RUNS(1) && RUNS(2) && runs_under[1] == runs_under[2]))
#else
  assert(RUNS(0) + RUNS(1) + RUNS(2) <= 1)
#endif
}

/* Whether a record allows a transfer from a source of this epoch. */
#define REFUSED_NEWER(x, s, e) (TRANSFER(x, s) == T_REFUSED && new_epoch[s] > (e))
#if SESSIONS == 3
#define REFUSED(x, e) (REFUSED_NEWER(x, 0, e) || REFUSED_NEWER(x, 1, e) || REFUSED_NEWER(x, 2, e))
#else
#define REFUSED(x, e) (REFUSED_NEWER(x, 0, e) || REFUSED_NEWER(x, 1, e) || REFUSED_NEWER(x, 2, e) || REFUSED_NEWER(x, 3, e))
#endif
#define IS_HERE(x) (state[x] == S_OWNER || state[x] == S_RUNNING)
#define ACCEPTS(x, e) (state[x] != S_INTENT && !REFUSED(x, e) && (IS_HERE(x) -> (e) > epoch[x] : (e) >= epoch[x]))

/* The source owns the task. */
inline write_kept(m, s) {
  state[m] = S_OWNER;
#ifdef SAME_EPOCH
  epoch[m] = new_epoch[s]
#else
  epoch[m] = new_epoch[s] + SESSIONS /* more than the other one can reach */
#endif
}

inline write_released(m, s) {
  assert(was_owner[s]);
  state[m] = S_RELEASED;
  epoch[m] = new_epoch[s]
}

/* The process that is in doubt runs the task again; or it has ended, and another writes the record. */
inline keep(m, s) {
#ifdef RESTORED
  refusals++;
#endif
  if
  :: process[m] == P_DOUBT ->
     if
     :: HOLDS(m) -> write_kept(m, s); WROTE(m)
     :: else
     fi;
     process[m] = P_RUNS;
     runs_under[m] = epoch[m]
  :: process[m] != P_DOUBT || LOST(m) -> write_kept(m, s); BY_ANOTHER(m)
  fi
}

inline release(m, s) {
  if
  :: process[m] == P_DOUBT ->
     if
     :: HOLDS(m) -> write_released(m, s); WROTE(m)
     :: else
     fi;
     process[m] = P_NONE
  :: process[m] != P_DOUBT || LOST(m) -> write_released(m, s); BY_ANOTHER(m)
  fi
}

/* The destination owned the task, and receive() never returned it. */
#define UNDELIVERED(x, s) (state[x] == S_OWNER && written_by[x] == (s) && TRANSFER(x, s) == T_COMMITTED)
#ifdef LOCKED_READS
#define BUSY(x) LOCKED(x)
#else
#define BUSY(x) false
#endif
/* What a receiver on machine x replies about session s, by its memory or its record. */
#define R_UNKNOWN 0
#define R_OWNER 1
#define R_REFUSED 2
#define R_AWAITS 3
inline answer_by_record(x, s) {
#ifdef NO_LIST
  if
  :: LOCKED(x)
  :: else ->
     if
     :: written_by[x] != s || state[x] == S_NONE -> reply = R_REFUSED
     :: else ->
        if
        :: state[x] == S_OWNER -> state[x] = S_NONE; reply = R_REFUSED
        :: else -> reply = R_OWNER
        fi
     fi
  fi
#else
  if
  :: TRANSFER(x, s) == T_REFUSED -> reply = R_REFUSED
  :: TRANSFER(x, s) == T_COMMITTED && !UNDELIVERED(x, s) && !BUSY(x) -> reply = R_OWNER
  :: UNDELIVERED(x, s) && !LOCKED(x) ->
     TRANSFER(x, s) = T_REFUSED; state[x] = S_NONE; reply = R_REFUSED; BY_ANOTHER(x)
  :: TRANSFER(x, s) == T_OFFERED && !LOCKED(x) ->
     TRANSFER(x, s) = T_REFUSED; reply = R_REFUSED; BY_ANOTHER(x)
  :: else
  fi
#endif
}

#define IN_MEMORY(x, s) (received[(x) * SESSIONS + (s)] || (session[x] == (s) && (process[x] == P_RECEIVES || process[x] == P_AWAITS || (process[x] == P_OWNED && HOLDS(x)))))
inline answer(x, s) {
  reply = R_UNKNOWN;
  if
  :: process[x] == P_RECEIVES && session[x] == s -> process[x] = P_NONE; reply = R_REFUSED
  :: process[x] == P_AWAITS && session[x] == s -> reply = R_AWAITS
  :: process[x] == P_OWNED && session[x] == s && HOLDS(x) -> reply = R_OWNER
  :: received[x * SESSIONS + s] -> reply = R_OWNER
  :: !IN_MEMORY(x, s) || LOST(x) -> answer_by_record(x, s)
  fi
}

inline write_owner(x, s) {
  state[x] = S_OWNER;
  epoch[x] = new_epoch[s];
  written_by[x] = s;
  TRANSFER(x, s) = T_COMMITTED
}

inline become_owner(x, s) {
  write_owner(x, s);
  process[x] = P_OWNED;
  was_owner[s] = true
}

/* A record on machine m that says intent, with nobody there who holds it. */
#define ABANDONED(m) (state[m] == S_INTENT && process[m] == P_NONE)
#ifdef UNLOCKED
#define MAY_RESOLVE(m) (process[m] == P_DOUBT || (state[m] == S_INTENT && (process[m] == P_NONE || process[m] == P_RUNS)))
#else
#define MAY_RESOLVE(m) (process[m] == P_DOUBT || ABANDONED(m) || (state[m] == S_INTENT && LOST(m)))
#endif
/* The session that m is in doubt about. */
#define DOUBTED(m) (process[m] == P_DOUBT -> session[m] : written_by[m])
#ifdef ANY_MACHINE
#define BELIEVED(m, x) true
#else
#define BELIEVED(m, x) (to[DOUBTED(m)] == (x))
#endif
/* Whether machine x can change or end the doubt of session s. */
#ifdef NO_LIST
#define HAS_ANSWER(x, s) (received[(x) * SESSIONS + (s)] || (process[x] >= P_RECEIVES && session[x] == (s)) || !LOCKED(x))
#else
#define HAS_ANSWER(x, s) (received[(x) * SESSIONS + (s)] || (process[x] >= P_RECEIVES && session[x] == (s)) || TRANSFER(x, s) == T_REFUSED || (TRANSFER(x, s) == T_COMMITTED && !UNDELIVERED(x, s) && !BUSY(x)) || (TRANSFER(x, s) != T_UNKNOWN && !LOCKED(x)))
#endif

/* All that machine m does as a source, and machine x as its destination. */
proctype pair(byte m, x) {
  byte s, i, reply;
end:
  do
  /* ---- the source m ---- */
  :: atomic { process[m] == P_RUNS && !kept_locked[m] && IS_HERE(m) &&
              sessions < SESSIONS && process[x] == P_NONE && ACCEPTS(x, epoch[m]) && MAY(E_OFFERED, x) ->
     s = sessions;
     sessions++;
     from[s] = m;
     to[s] = x;
     new_epoch[s] = epoch[m] + 1;
     process[m] = P_COPIES;
     WROTE(m);
     session[m] = s;
     process[x] = P_RECEIVES;
     WROTE(x);
     session[x] = s;
     /* A task that receive() never returned, and whose process has ended. */
     if
     :: state[x] == S_OWNER && written_by[x] != NOBODY &&
        TRANSFER(x, written_by[x]) == T_COMMITTED ->
        TRANSFER(x, written_by[x]) = T_REFUSED;
        state[x] = S_NONE
     :: else
     fi;
#ifndef NO_OFFER
     /* The offer replaces one of the same epoch, which its source has not committed. */
     i = 0;
     do
     :: i < s ->
        if
        :: TRANSFER(x, i) == T_OFFERED && new_epoch[i] == new_epoch[s] ->
           TRANSFER(x, i) = T_UNKNOWN
        :: else
        fi;
        i++
     :: else -> break
     od;
     TRANSFER(x, s) = T_OFFERED;
#endif
     DID; check() }
  :: atomic { process[m] == P_COPIES && process[x] == P_RECEIVES && session[m] == session[x] &&
              MAY(E_AWAITS, x) ->
     process[m] = P_STOPPED;
     process[x] = P_AWAITS;
     DID; check() }
  /* It cancels, or finds the connection closed: the task goes on. */
  :: atomic { (process[m] == P_COPIES || process[m] == P_STOPPED) && to[session[m]] == x ->
     process[m] = P_RUNS;
     check() }
  :: atomic { process[m] == P_STOPPED && to[session[m]] == x && HOLDS(m) && MAY(E_INTENT, m) ->
     s = session[m];
     WROTE(m);
     state[m] = S_INTENT;
     written_by[m] = s;
     process[m] = P_DOUBT;
     commit_sent[s] = true;
     DID; check() }
#ifndef TRACE
  /* The intent is on disk, and neither its sync nor its removal succeeds: the task goes on. */
  :: atomic { process[m] == P_STOPPED && to[session[m]] == x && HOLDS(m) ->
     WROTE(m);
     state[m] = S_INTENT;
     written_by[m] = session[m];
     process[m] = P_RUNS;
     kept_locked[m] = true;
     check() }
  :: atomic { kept_locked[m] && process[m] == P_RUNS && x == (m + 1) % N ->
     state[m] = S_OWNER;
     kept_locked[m] = false;
     check() }
#endif
  :: atomic { process[m] == P_DOUBT && to[session[m]] == x && reply_sent[session[m]] &&
              MAY(E_RELEASED, m) ->
     s = session[m];
     reply_sent[s] = false;
     release(m, s);
     DID; check() }
  /* In doubt, or another process in its place: it asks x. */
  :: atomic { MAY_RESOLVE(m) && BELIEVED(m, x) && HAS_ANSWER(x, DOUBTED(m)) ->
     s = DOUBTED(m);
     answer(x, s);
     if
     :: reply == R_OWNER && MAY(E_RELEASED, m) -> release(m, s); DID
     :: reply == R_REFUSED && MAY(E_KEPT, m) && MAY_KEEP -> keep(m, s); DID
     :: reply == R_AWAITS -> commit_sent[s] = true
     :: reply == R_REFUSED && !MAY_KEEP
     fi;
     check() }
#ifdef NO_LIST
  /* The right machine replies, with another directory of records. */
  :: atomic { MAY_RESOLVE(m) && to[DOUBTED(m)] == x && process[x] == P_NONE ->
     s = DOUBTED(m);
     keep(m, s);
     check() }
#endif
#ifdef ANY_MACHINE
  /* Another machine replies, with a copy of the records, or with a lie. */
  :: atomic { MAY_RESOLVE(m) && to[DOUBTED(m)] != x ->
     s = DOUBTED(m);
     keep(m, s);
     check() }
#endif
  /* ---- the destination x ---- */
  :: atomic { process[x] == P_AWAITS && from[session[x]] == m && commit_sent[session[x]] &&
              HOLDS(x) && MAY(E_OWNER, x) ->
     s = session[x];
     WROTE(x);
     become_owner(x, s);
     reply_sent[s] = true;
     DID; check() }
#ifndef TRACE
  /* The record cannot be written: it says one or the other, or that the transfer is refused. */
  :: atomic { process[x] == P_AWAITS && from[session[x]] == m && commit_sent[session[x]] &&
              HOLDS(x) ->
     s = session[x];
     if
     :: write_owner(x, s)
     :: state[x] = S_NONE; epoch[x] = new_epoch[s]; TRANSFER(x, s) = T_REFUSED
     :: true
     fi;
     process[x] = P_NONE;
     check() }
#endif
  :: atomic { process[x] == P_OWNED && from[session[x]] == m && HOLDS(x) && MAY(E_RUNNING, x) ->
     s = session[x];
     WROTE(x);
     state[x] = S_RUNNING;
     process[x] = P_RUNS;
     runs_under[x] = epoch[x];
     received[x * SESSIONS + s] = true;
     DID; check() }
  /* It has waited for too long, or its connection is closed. */
  :: atomic { (process[x] == P_RECEIVES || process[x] == P_AWAITS) && from[session[x]] == m ->
     process[x] = P_NONE;
     check() }
#ifdef DELETIONS
  /* Another process has changed the record, so nothing can be written: it gives up. */
  :: atomic { (process[x] == P_AWAITS || process[x] == P_OWNED) && from[session[x]] == m &&
              !HOLDS(x) ->
     process[x] = P_NONE;
     check() }
#endif
  /* ---- faults ---- */
#ifdef DELETIONS
  /* Not of a record that cannot be taken back: only its lock keeps others from it. */
  :: atomic { deletions < DELETIONS && HAS_LOCK(m) && !kept_locked[m] && !lost[m] &&
              x == (m + 1) % N && MAY(E_DELETED, m) ->
     deletions++;
     lost[m] = true;
     DID; check() }
#endif
  :: atomic { !calm && crashes < CRASHES && MAY_CRASH(m) && x == (m + 1) % N && MAY(E_CRASH, m) ->
     crashes++;
     process[m] = P_NONE;
     WROTE(m);
     kept_locked[m] = false;
     for (i : 0 .. SESSIONS - 1) { received[m * SESSIONS + i] = false }
     DID; check() }
#ifdef RESTORED
  :: atomic { copy_state == NOBODY && sessions > 0 && state[x] != S_INTENT && m == (x + 1) % N ->
     copy_of = x;
     copy_state = state[x];
     copy_epoch = epoch[x];
     copy_by = written_by[x];
     for (i : 0 .. SESSIONS - 1) { copy_transfer[i] = TRANSFER(x, i) }
     check() }
  /* The directory is another one then: a receiver that uses it finds no lock. */
  :: atomic { copy_state != NOBODY && !restored && x == copy_of && m == (x + 1) % N ->
     restored = true;
     state[x] = copy_state;
     epoch[x] = copy_epoch;
     written_by[x] = copy_by;
     for (i : 0 .. SESSIONS - 1) { TRANSFER(x, i) = copy_transfer[i] }
     for (i : 0 .. SESSIONS - 1) { received[x * SESSIONS + i] = false }
     check() }
#endif
  od
}

/* From some moment on, everything stays up. */
proctype end_of_crashes() {
  calm = true
}

/* Loses a commit or its reply. */
proctype network(byte s) {
end:
  do
  :: commit_sent[s] -> commit_sent[s] = false
  :: reply_sent[s] -> reply_sent[s] = false
  od
}

/* Nothing more can happen. */
proctype at_rest() {
end:
  timeout;
#if !defined(RESTORED) && !defined(TRACE)
  assert(!ABANDONED(0) && process[0] != P_DOUBT);
  assert(!ABANDONED(1) && process[1] != P_DOUBT);
  assert(!ABANDONED(2) && process[2] != P_DOUBT);
  assert(crashes > 0 || RUNS(0) + RUNS(1) + RUNS(2) == 1)
#endif
}

init {
  atomic {
    process[0] = P_RUNS;
    runs_under[0] = 1;
    state[0] = S_OWNER;
    epoch[0] = 1;
    written_by[0] = NOBODY;
    written_by[1] = NOBODY;
    written_by[2] = NOBODY;
    run pair(0, 1); run pair(0, 2); run pair(1, 0); run pair(1, 2); run pair(2, 0); run pair(2, 1);
    run network(0); run network(1); run network(2);
#if SESSIONS > 3
    run network(3);
#endif
#if CRASHES > 0
    run end_of_crashes();
#endif
    run at_rest()
  }
}
