/* Who gets memory of a shared limit, who waits, and who is asked for memory: the rules of shared_quota
 * (allocators/admission/), checked by SPIN for every order of steps. tools/check/models.py runs it.
 *
 * Three participants and LIMIT units. One that gets too little registers a wait, asks the others for
 * cached memory, then for evictable memory, and looks at the table again and again until it is granted or
 * its time is over. Each `::` with an atomic step is one transaction, or one release, and takes place as a
 * whole; between two of them the others may take any steps. Nothing relies on a ring: all may be lost.
 *
 * Checked in every run:
 *   - what is reserved never exceeds the limit, and is what its holders have: no grant counts twice, and
 *     what is not used of one goes back;
 *   - a request within the minimum is granted at once (with JOINS: as soon as it fits beside what others hold);
 *   - a grant above the minimum delays no wait of a higher priority and no earlier one of the same; and
 *     at most MAX_OVERTAKEN of them delay an earlier wait of a lower priority;
 *   - evictable memory is not asked for from one that waits longer, nor, for a lower priority, from one of
 *     a higher that does not wait.
 * With LIVE each participant that runs takes its steps again and again (weak fairness), and it is checked that
 *   - every wait ends: by a grant, although others die, or by its deadline beside one that is stopped for ever;
 *   - with SETS, where a task computes only with SETS units and what is evicted has to come back: somebody
 *     computes again and again.
 *
 * What may happen, as often as the number says: STARTS (requests of all together; without it any number), DEATHS,
 * STOPS (without LIVE, one that is stopped may continue), JOINS (the first participant comes when the others hold
 * memory, and in the place of one that has died). DEADLINES: the time of a wait may be over at any moment; with LIVE,
 * where one is stopped. MINIMUM: of the first participant. PRIORITY: of the last one; that of the others is 0. HOLD:
 * two participants may hold memory at first. MOST: units of one request. SLOW_ANSWERS: other steps
 * come between giving memory and the answer.
 *
 * Each of these macros takes one rule away, and SPIN finds what goes wrong then:
 *   OUTSIDE_LOCK             decides in one transaction, and reserves in another
 *   NO_LEAVE_FOR_EARLIER     what earlier waits need is not left for them
 *   NO_OVERTAKE_BOUND        any number of requests of higher priority may overtake a wait
 *   NO_MINIMUM_KEPT          the minima of the others are not kept free
 *   NO_DEAD_REMOVAL          nobody frees what dead participants have reserved
 *   NO_DEADLINE              a wait has no deadline
 *   NO_ANSWER_WHILE_WAITING  one that waits answers nobody
 *   NO_LOOK_AGAIN            one that waits looks only when it was answered
 *   RINGS_ONLY               one that is asked looks only when a ring arrives
 *   ASK_BEFORE_OTHERS        evictable memory is asked for from one that waits longer
 *   NO_ASK_AFTER_OVERTAKING  one that comes first because it was overtaken asks for no evictable memory
 *                            of the higher priority that waits behind it
 *   ANY_IS_BUSY              one whom anybody has asked is asked by nobody else, although that one comes first
 * Left out: memory of whole tasks (asked for as evictable memory is), the maximum, the device's
 * memory, changes of the limit and of terms, several threads of one participant, one that is stopped with
 * the ledger locked (the calls of others fail then, and their entries end by their deadline).
 */

#define N 3
#ifndef LIMIT
#define LIMIT 3
#endif
#ifndef MAX_OVERTAKEN
#define MAX_OVERTAKEN 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef JOINS
#define JOINS 0
#endif
#ifndef MINIMUM
#define MINIMUM 0
#endif
#ifndef PRIORITY
#define PRIORITY 0
#endif
#ifndef MOST
#define MOST 2
#endif
#define MIN(i) ((i) == 0 -> MINIMUM : 0)
#define PRIO(i) ((i) == N - 1 -> PRIORITY : 0)
#define OTHER(i, k) (((i) + (k)) % N)

/* A slot of the table: who holds it, what is reserved, and the wait. */
#define NOBODY 0
#define RUNS 1
#define STOPPED 2
#define DEAD 3
byte owner[N];
byte reserved[N];
byte ticket[N];      /* the order of those that wait, from 1 on; 0: it does not wait */
byte want[N];
bool over[N];        /* its time is over */
byte overtaken[N];
/* What it is asked for. */
bool asked[N];       /* and has not answered */
byte asked_by[N];
byte asked_bytes[N];
bool asked_for_evictable[N];
bool for_wait[N];    /* the wait that it was asked for goes on */
bool silent[N];      /* it has not answered in time */

/* In the memory of a participant. */
byte used[N], evictable[N], cached[N];
#define IDLE 0
#define WAITS 1
#define DECIDED 2    /* with OUTSIDE_LOCK */
byte task[N];
#define KIND_CACHED 0
#define KIND_EVICTABLE 1
#define ALL_ASKED 2
byte kind[N];        /* that it asks for */
bool has_asked[N * N];
#define HAS_ASKED(i, s) has_asked[(i) * N + (s)]
bool answering[N];   /* has given what it could, and not answered yet */
bool asked_anew[N];  /* meanwhile it was asked for something else */
#ifdef RINGS_ONLY
bool rung[N];
#define HEARS(i) rung[i]
#else
#define HEARS(i) true
#endif
#ifdef NO_LOOK_AGAIN
bool answered[N];
#define LOOKS(i) (answered[i] || over[i])
#else
#define LOOKS(i) true
#endif

#ifdef STARTS
byte starts = 0;
#define MAY_START (starts < STARTS)
#define STARTED starts++
#else
#define MAY_START true
#define STARTED skip
#endif
byte deaths = 0, stops = 0, joins = 0;
byte delays[N];      /* grants to others that have delayed its wait (for the checks) */
#ifdef SETS
bool computes = false;
#define NEXT computes = false
#else
#define NEXT skip
#endif

/* Of one step: 0 between two, or not kept at all. */
bool granted, rings;
byte missing, coming;
hidden byte held, others, ahead, bytes, a, b, x;

#define MORE(x, y) ((x) > (y) -> (x) : (y))
#define LESS(x, y) ((x) < (y) -> (x) : (y))
#define IS_TAKEN(i) (owner[i] != NOBODY)
#define HAS_TICKET(i) (ticket[i] != 0 && !over[i])
#ifdef NO_MINIMUM_KEPT
#define KEPT(i) 0
#else
#define KEPT(i) MIN(i)
#endif
#define CHARGED(i) (IS_TAKEN(i) -> MORE(reserved[i], KEPT(i)) : 0)

/* ---- the rules ---- */

#ifdef NO_OVERTAKE_BOUND
#define IS_FIRST(i) false
#else
#define IS_FIRST(i) (HAS_TICKET(i) && overtaken[i] >= MAX_OVERTAKEN)
#endif
#define RANK(i) ((IS_FIRST(i) -> 0 : 8 + 8 * (1 - PRIO(i))) + (HAS_TICKET(i) -> ticket[i] : 7))
#define IS_BEFORE(o, i) ((o) != (i) && HAS_TICKET(o) && RANK(o) < RANK(i))

#define NEEDS(o) (MORE(reserved[o] + want[o], KEPT(o)) - CHARGED(o))
inline decide_beside(i, o) {
  if
  :: IS_TAKEN(o) ->
     held = held + reserved[o];
     others = others + CHARGED(o);
#ifndef NO_LEAVE_FOR_EARLIER
     if
     :: IS_BEFORE(o, i) -> ahead = ahead + NEEDS(o)
     :: else
     fi
#endif
  :: else
  fi
}
#if JOINS > 0
#define TOO_MUCH_IS_HELD (reserved[i] + want[i] + held > LIMIT)
#else
#define TOO_MUCH_IS_HELD (deaths > 0 && (owner[0] == DEAD || owner[1] == DEAD || owner[2] == DEAD) && reserved[i] + want[i] + held > LIMIT)
#endif
inline decide(i) {
  d_step {
    held = 0; others = 0; ahead = 0;
    decide_beside(i, OTHER(i, 1));
    decide_beside(i, OTHER(i, 2));
    if
    :: reserved[i] + want[i] <= KEPT(i) -> x = held
    :: else -> x = others + ahead
    fi;
    granted = reserved[i] + want[i] + x <= LIMIT;
    missing = (granted -> 0 : reserved[i] + want[i] + x - LIMIT);
    /* Within the minimum: at once, unless others had it when this one came. */
    assert(granted || reserved[i] + want[i] > MIN(i) || TOO_MUCH_IS_HELD)
  }
}

/* It could never be granted, beside the minima of the others. */
#define MINIMUM_OF(o) (IS_TAKEN(o) -> MIN(o) : 0)
#define IS_TOO_MUCH(i, n) (reserved[i] + (n) + MINIMUM_OF(OTHER(i, 1)) + MINIMUM_OF(OTHER(i, 2)) > LIMIT)
/* Whom it may ask for evictable memory. */
#ifdef ASK_BEFORE_OTHERS
#define WAITS_LONGER(s, i) false
#else
#define WAITS_LONGER(s, i) IS_BEFORE(s, i)
#endif
#ifdef NO_ASK_AFTER_OVERTAKING
#define COMES_FIRST(i, s) false
#else
#define COMES_FIRST(i, s) (HAS_TICKET(s) && IS_BEFORE(i, s))
#endif
#define MAY_ASK(i, s) (IS_TAKEN(s) && reserved[s] > MIN(s) && (kind[i] == KIND_CACHED || ((PRIO(s) <= PRIO(i) || COMES_FIRST(i, s)) && !WAITS_LONGER(s, i))))
/* Another that waits, and is served before, has asked it and has no answer yet. */
#ifdef ANY_IS_BUSY
#define ASKS_FIRST(i, o) false
#else
#define ASKS_FIRST(i, o) IS_BEFORE(i, o)
#endif
#define IS_BUSY(i, s) (asked[s] && asked_by[s] != i && for_wait[s] && HAS_TICKET(asked_by[s]) && !ASKS_FIRST(i, asked_by[s]))

/* ---- the checks ---- */

inline check() {
  assert(reserved[0] + reserved[1] + reserved[2] <= LIMIT);
  assert(reserved[0] == used[0] + evictable[0] + cached[0]);
  assert(reserved[1] == used[1] + evictable[1] + cached[1]);
  assert(reserved[2] == used[2] + evictable[2] + cached[2])
}

/* Whether the wait of o has what it needs, with all that is reserved now. */
#define BESIDE(o, p) (IS_TAKEN(p) -> MORE(reserved[p], MIN(p)) : 0)
#define HAS_ENOUGH(o) (reserved[o] + want[o] + BESIDE(o, OTHER(o, 1)) + BESIDE(o, OTHER(o, 2)) <= LIMIT)
#define IS_EARLIER(o, i) (!HAS_TICKET(i) || ticket[o] < ticket[i])
inline check_delay(i, o) {
  if
  :: owner[o] != DEAD && HAS_TICKET(o) && !HAS_ENOUGH(o) ->
     assert(PRIO(o) != PRIO(i) || !IS_EARLIER(o, i));
     assert(PRIO(o) <= PRIO(i) || (HAS_TICKET(i) && overtaken[i] >= MAX_OVERTAKEN));
     if
     :: PRIO(o) < PRIO(i) && IS_EARLIER(o, i) ->
        delays[o]++;
        assert(delays[o] <= MAX_OVERTAKEN)
     :: else
     fi
  :: else
  fi
}

/* ---- transactions ---- */

inline end_wait_of(i, o) {
  if
  :: ticket[o] > ticket[i] -> ticket[o]--
  :: else
  fi;
  if
  :: asked[o] && asked_by[o] == i -> for_wait[o] = false; silent[o] = false
  :: else
  fi;
  HAS_ASKED(i, o) = false
}
inline end_wait(i) {
  if
  :: ticket[i] != 0 ->
     end_wait_of(i, OTHER(i, 1));
     end_wait_of(i, OTHER(i, 2));
     ticket[i] = 0; over[i] = false; overtaken[i] = 0; delays[i] = 0; kind[i] = KIND_CACHED
#ifdef NO_LOOK_AGAIN
     ; answered[i] = false
#endif
  :: else
  fi;
  want[i] = 0
}

inline remove(i) {
  end_wait(i);
  owner[i] = NOBODY;
  reserved[i] = 0; used[i] = 0;
  asked[i] = false; asked_by[i] = 0; asked_bytes[i] = 0; asked_for_evictable[i] = false;
  for_wait[i] = false; silent[i] = false;
  HAS_ASKED(OTHER(i, 1), i) = false;
  HAS_ASKED(OTHER(i, 2), i) = false
#ifdef RINGS_ONLY
  ; rung[i] = false
#endif
}
inline remove_dead() {
#if !defined(NO_DEAD_REMOVAL) && DEATHS > 0
  d_step {
    if
    :: owner[0] == DEAD -> remove(0)
    :: else
    fi;
    if
    :: owner[1] == DEAD -> remove(1)
    :: else
    fi;
    if
    :: owner[2] == DEAD -> remove(2)
    :: else
    fi
  }
#else
  skip
#endif
}

inline overtake(i, o) {
  if
  :: HAS_TICKET(o) && IS_EARLIER(o, i) && !IS_BEFORE(o, i) ->
     overtaken[o] = LESS(overtaken[o] + 1, MAX_OVERTAKEN) /* the rest makes no difference */
  :: else
  fi
}
inline grant(i) {
  d_step {
    if
    :: reserved[i] + want[i] > MIN(i) ->
       overtake(i, OTHER(i, 1));
       overtake(i, OTHER(i, 2));
       used[i] = used[i] + want[i];
       reserved[i] = reserved[i] + want[i];
       check_delay(i, OTHER(i, 1));
       check_delay(i, OTHER(i, 2))
    :: else ->
       used[i] = used[i] + want[i];
       reserved[i] = reserved[i] + want[i]
    fi;
    end_wait(i);
    task[i] = IDLE;
    check()
  }
}

#define ABOVE(s) (reserved[s] - MIN(s))
inline ask_one(i, s) {
  if
  :: coming < missing && MAY_ASK(i, s) && !HAS_ASKED(i, s) && !IS_BUSY(i, s) ->
#ifndef LIVE
     /* Nothing that costs its holder something is taken from one that is served before. */
     assert(kind[i] == KIND_CACHED || !(HAS_TICKET(s) && PRIO(s) == PRIO(i) && IS_EARLIER(s, i)));
     assert(kind[i] == KIND_CACHED || PRIO(s) <= PRIO(i) || HAS_TICKET(s));
#endif
     if
     :: answering[s] -> asked_anew[s] = true
     :: else
     fi;
     bytes = LESS(ABOVE(s), missing - coming);
     asked[s] = true; asked_by[s] = i; asked_bytes[s] = bytes; for_wait[s] = true; silent[s] = false;
     asked_for_evictable[s] = (kind[i] == KIND_EVICTABLE);
     HAS_ASKED(i, s) = true;
#ifdef RINGS_ONLY
     rung[s] = rung[s] || rings;
#endif
     coming = coming + bytes
  :: else
  fi
}

/* What is still to come of one that was asked. It comes too late at any moment. */
inline await(i, s) {
  if
  :: asked[s] && asked_by[s] == i && for_wait[s] && !silent[s] ->
     if
#ifdef LIVE
     :: owner[s] != RUNS || (asked_for_evictable[s] && used[s] > 0) -> silent[s] = true
     :: else -> coming = coming + asked_bytes[s]
#else
     :: coming = coming + asked_bytes[s]
     :: silent[s] = true
#endif
     fi
  :: else
  fi
}
inline forget_asked(i) {
  HAS_ASKED(i, OTHER(i, 1)) = false;
  HAS_ASKED(i, OTHER(i, 2)) = false
}
inline ask_kind(i) {
  if
  :: coming < missing && kind[i] != ALL_ASKED ->
     /* First those of lowest priority, of those the one with most above its minimum. */
     a = LESS(OTHER(i, 1), OTHER(i, 2));
     b = MORE(OTHER(i, 1), OTHER(i, 2));
     if
     :: PRIO(b) < PRIO(a) || (PRIO(b) == PRIO(a) && ABOVE(b) > ABOVE(a)) -> x = a; a = b; b = x
     :: else
     fi;
     ask_one(i, a);
     ask_one(i, b);
     if
     :: coming == 0 -> forget_asked(i); kind[i]++
     :: else /* others, and the next kind, are asked once these have answered */
     fi
  :: else
  fi
}
inline ask(i) {
  coming = 0;
  await(i, OTHER(i, 1));
  await(i, OTHER(i, 2));
  if
  :: kind[i] == ALL_ASKED -> forget_asked(i); kind[i] = KIND_CACHED
#ifndef LIVE
  :: kind[i] == ALL_ASKED /* not yet */
#endif
  :: else
  fi;
#ifdef RINGS_ONLY
  if
  :: rings = true
  :: rings = false
  fi;
#endif
  d_step {
    ask_kind(i);
    if
    :: coming == 0 -> ask_kind(i)
    :: else
    fi
  }
}

inline look(i) {
#ifdef NO_LOOK_AGAIN
  answered[i] = false;
#endif
  decide(i);
  if
  :: !granted -> remove_dead(); decide(i)
  :: else
  fi;
  if
  :: granted ->
#ifdef OUTSIDE_LOCK
     task[i] = DECIDED
#else
     grant(i)
#endif
  :: else ->
     if
     :: over[i] || IS_TOO_MUCH(i, want[i]) -> end_wait(i); task[i] = IDLE
     :: else ->
        if
        :: ticket[i] == 0 ->
           task[i] = WAITS;
           ticket[i] = 1 + (ticket[0] != 0) + (ticket[1] != 0) + (ticket[2] != 0)
        :: else
        fi;
        ask(i)
     fi
  fi;
  granted = false; rings = false; missing = 0; coming = 0
}

#ifdef NO_ANSWER_WHILE_WAITING
#define ANSWERS(i) (asked[i] && !answering[i] && HEARS(i) && task[i] != WAITS)
#else
#define ANSWERS(i) (asked[i] && !answering[i] && HEARS(i))
#endif
/* Memory that is in use is given later: the question stays open. */
#define GIVES_LATER(i) (asked_for_evictable[i] && evictable[i] < asked_bytes[i] && used[i] > 0)
inline give(i) {
  d_step {
#ifdef RINGS_ONLY
    rung[i] = GIVES_LATER(i);
#endif
    answering[i] = !GIVES_LATER(i);
    if
    :: asked_for_evictable[i] ->
       bytes = LESS(evictable[i], asked_bytes[i]);
       evictable[i] = evictable[i] - bytes
    :: else ->
       bytes = LESS(cached[i], asked_bytes[i]);
       cached[i] = cached[i] - bytes
    fi;
    reserved[i] = reserved[i] - bytes;
    check()
  }
}
inline answer(i) {
  d_step {
    answering[i] = false;
    if
    :: asked_anew[i] -> asked_anew[i] = false
    :: else ->
#ifdef NO_LOOK_AGAIN
       answered[asked_by[i]] = true;
#endif
       asked[i] = false; asked_by[i] = 0; asked_bytes[i] = 0; asked_for_evictable[i] = false;
       for_wait[i] = false; silent[i] = false
    fi
  }
}

inline give_and_answer(i) {
  give(i);
  if
  :: answering[i] -> answer(i)
  :: else
  fi
}

inline release(i, what) {
  reserved[i] = reserved[i] - what;
  what = 0;
  check()
}
inline becomes(what, that) {
  that = that + what;
  what = 0
}
inline request(i) {
  if
  :: want[i] = 1
  :: MOST >= 2 && !IS_TOO_MUCH(i, 2) -> want[i] = 2
  :: MOST >= 3 && !IS_TOO_MUCH(i, 3) -> want[i] = 3
  fi;
  look(i)
}

#ifndef LIVE
proctype participant(byte i) {
end:
  do
  :: atomic { owner[i] == RUNS && task[i] == IDLE && !IS_TOO_MUCH(i, 1) && MAY_START ->
     STARTED; request(i) }
  :: atomic { owner[i] == RUNS && task[i] == WAITS && LOOKS(i) -> look(i) }
#ifdef OUTSIDE_LOCK
  :: atomic { owner[i] == RUNS && task[i] == DECIDED -> grant(i) }
#endif
  /* Its thread that answers. */
#ifdef SLOW_ANSWERS
  :: atomic { owner[i] == RUNS && ANSWERS(i) -> give(i) }
  :: atomic { owner[i] == RUNS && answering[i] -> answer(i) }
#else
  :: atomic { owner[i] == RUNS && ANSWERS(i) -> give_and_answer(i) }
#endif
  /* What it was granted is used, and then idle; or it cannot be created, and goes back. */
  :: atomic { owner[i] == RUNS && used[i] > 0 -> becomes(used[i], evictable[i]) }
  :: atomic { owner[i] == RUNS && used[i] > 0 -> becomes(used[i], cached[i]) }
  :: atomic { owner[i] == RUNS && used[i] > 0 -> release(i, used[i]) }
  od
}
#endif

#ifdef LIVE
/* One step of a task, and then it answers. With SETS it computes when it has all of them; else it uses memory,
 * holds it while it asks for more, or keeps it in its cache. One that holds memory which is not in its cache
 * goes on. */
inline work(i) {
  if
  :: task[i] == WAITS ->
     if
     :: LOOKS(i) -> look(i)
     :: else
     fi
#ifdef SETS
  :: task[i] == IDLE && used[i] == SETS -> becomes(used[i], evictable[i]); computes = true
  :: task[i] == IDLE && used[i] < SETS ->
     becomes(used[i], evictable[i]);
     if
     :: evictable[i] == SETS -> becomes(evictable[i], used[i])
     :: else -> want[i] = SETS - evictable[i]; look(i)
     fi
#else
  :: task[i] == IDLE && used[i] > 0 ->
     if
     :: becomes(used[i], evictable[i])
     :: becomes(used[i], cached[i])
     fi
  :: task[i] == IDLE && used[i] == 0 ->
     if
     :: evictable[i] == 0
     :: evictable[i] > 0 -> becomes(evictable[i], cached[i])
     :: !IS_TOO_MUCH(i, 1) -> request(i)
     fi
#endif
  fi
}
proctype participant(byte i) {
end:
  do
  :: atomic { owner[i] == RUNS ->
     NEXT;
     work(i);
     if
     :: ANSWERS(i) -> give_and_answer(i)
     :: else
     fi }
  od
}
#endif

#if DEATHS + STOPS + JOINS > 0
proctype faults() {
  byte i;
end:
  do
  :: atomic { deaths < DEATHS -> select (i : 0 .. N - 1); 
     if
     :: owner[i] == RUNS || owner[i] == STOPPED ->
        deaths++;
        owner[i] = DEAD;
        used[i] = reserved[i]; evictable[i] = 0; cached[i] = 0;
        task[i] = IDLE; kind[i] = KIND_CACHED;
        forget_asked(i);
        answering[i] = false; asked_anew[i] = false
     :: else
     fi;
     i = 0 }
  :: atomic { stops < STOPS -> select (i : 0 .. N - 1);
     if
     :: owner[i] == RUNS -> owner[i] = STOPPED; stops++
     :: else
     fi;
     i = 0 }
#ifndef LIVE
  :: atomic { stops > 0 -> select (i : 0 .. N - 1);
     if
     :: owner[i] == STOPPED -> owner[i] = RUNS
     :: else
     fi;
     i = 0 }
#endif
  /* In the place of one that has died, or that nobody has had. */
  :: atomic { joins < JOINS && (owner[0] == NOBODY || owner[0] == DEAD) ->
     remove_dead();
     owner[0] = RUNS;
     joins++ }
  od
}
#endif

#if defined(DEADLINES) && !defined(NO_DEADLINE)
#define IN_TIME(i) (ticket[i] != 0 && !over[i])
#ifdef LIVE
/* Only those count that wait for one that is stopped. */
#define IS_STOPPED (owner[0] == STOPPED || owner[1] == STOPPED || owner[2] == STOPPED)
#endif
proctype clock() {
end:
  do
#ifdef LIVE
  :: atomic { IS_STOPPED && (IN_TIME(0) || IN_TIME(1) || IN_TIME(2)) ->
     over[0] = (ticket[0] != 0);
     over[1] = (ticket[1] != 0);
     over[2] = (ticket[2] != 0) }
#else
  :: atomic { IN_TIME(0) -> over[0] = true }
  :: atomic { IN_TIME(1) -> over[1] = true }
  :: atomic { IN_TIME(2) -> over[2] = true }
#endif
  od
}
#endif

#ifdef HOLD
inline hold(i) {
  if
  :: true
  :: used[i] = 1; reserved[i] = 1
  :: evictable[i] = 1; reserved[i] = 1
  :: cached[i] = 1; reserved[i] = 1
  fi
}
#endif

init {
  atomic {
#if JOINS == 0
    owner[0] = RUNS;
#endif
    owner[1] = RUNS;
    owner[2] = RUNS;
#ifdef HOLD
    hold(1);
    hold(2);
#endif
#if DEATHS + STOPS + JOINS > 0
    run faults();
#endif
#if defined(DEADLINES) && !defined(NO_DEADLINE)
    run clock();
#endif
    run participant(0); run participant(1); run participant(2)
  }
}

#ifdef LIVE
#define WAITS_ON(i) (owner[i] == RUNS && task[i] == WAITS)
/* From some moment on, one that runs waits for ever; or nobody computes. */
never {
  do
  :: true
#ifdef SETS
  :: !computes -> goto accept_none
#else
  :: WAITS_ON(0) -> goto accept_0
  :: WAITS_ON(1) -> goto accept_1
  :: WAITS_ON(2) -> goto accept_2
#endif
  od;
#ifdef SETS
accept_none:
  do
  :: !computes
  od
#else
accept_0:
  do
  :: WAITS_ON(0)
  od;
accept_1:
  do
  :: WAITS_ON(1)
  od;
accept_2:
  do
  :: WAITS_ON(2)
  od
#endif
}
#endif
