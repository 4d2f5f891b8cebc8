/* Who owns memory that one process hands to another: the ownership word of docs/handoff.md, checked
 * by SPIN for every order of steps, lost messages, timeouts and deaths. tools/check/models.py runs it.
 *
 * Checked: never do both use the memory; a sender gives it up only to a receiver that owned it; and
 * when nothing more can happen, one of two living processes uses it.
 *
 * Each of these macros takes one rule away, and SPIN finds what goes wrong then:
 *   IMPATIENT  a sender that hears nothing takes the memory back
 *   BELIEVES   any descriptor says that the receiver is dead
 *   NO_WORD    messages decide, and not the word
 *   EARLY      with LIES: the word decides before the offer, too
 * LIES lets the receiver write into the word, before the offer, that it has the memory.
 * TRACE restricts the model to the steps of a real run, as in migration.pml.
 */

mtype = { sender, offered, receiver, revoked, returned };
mtype word = sender;

#define S_USES 0      /* the memory is in use */
#define S_STOPPED 1   /* no work is queued on it */
#define S_OFFERED 2   /* waits for the report */
#define S_KEEPS 3     /* the handoff has failed: the memory is in use again */
#define S_RELEASED 4  /* nothing is mapped any more */
#define S_DEAD 5
byte s = S_USES;

#define R_READY 0  /* everything is mapped; waits for the offer */
#define R_OWNS 1   /* uses the memory */
#define R_TOLD 2   /* the same, and has reported it */
#define R_NONE 3   /* has given up */
#define R_DEAD 4
byte r = R_READY;

bool offer_sent = false, report_sent = false;
bool committed = false; /* the receiver has owned the memory */
bool calm = false;     /* nobody dies any more */

/* Events of a real run: the step, and the end. */
#define SENDER 0
#define RECEIVER 1
#define E_IDLE 1
#define E_COMMITTED 2
#define E_RELEASED 3
#define E_KEPT 4
#define E_NOTHING 5
#define E_KILLED 6
#ifdef TRACE
#include "events.h"
byte next = 0;
#define MAY(e, end) (next < EVENTS && events[next] == (e) * 2 + (end))
#define DID next++; assert(next < EVENTS)
#else
#define MAY(e, end) true
#define DID skip
#endif

#ifdef BELIEVES
#define IS_DEAD true
#else
#define IS_DEAD (r == R_DEAD)
#endif

#define SENDER_USES (s == S_USES || s == S_KEEPS)
#define BEFORE_OFFER (s == S_USES || s == S_STOPPED)
#define RECEIVER_USES (r == R_OWNS || r == R_TOLD)
#define CHECK assert(!(SENDER_USES && RECEIVER_USES))

proctype sending() {
end:
  do
  :: atomic { s == S_USES && MAY(E_IDLE, SENDER) -> s = S_STOPPED; DID }
  :: atomic { s == S_STOPPED && word == sender -> word = offered; offer_sent = true; s = S_OFFERED }
  :: atomic { s == S_OFFERED && report_sent && MAY(E_RELEASED, SENDER) ->
     report_sent = false; assert(committed); s = S_RELEASED; DID }
  /* Cancelled, a timeout, or a closed connection. Before the offer it keeps the memory, whatever the
   * word says; then the word decides. */
  :: atomic { BEFORE_OFFER && MAY(E_KEPT, SENDER) -> word = revoked; s = S_KEEPS; DID; CHECK }
#ifdef EARLY
  :: atomic { BEFORE_OFFER && word == receiver -> assert(committed); s = S_RELEASED }
#endif
  :: atomic { s == S_OFFERED ->
     if
#ifdef NO_WORD
     :: word = revoked; s = S_KEEPS
#else
     :: (word == sender || word == offered) && MAY(E_KEPT, SENDER) ->
        word = revoked; s = S_KEEPS; DID
#ifdef IMPATIENT
     :: word == receiver -> word = returned; s = S_KEEPS
#else
     :: word == receiver && IS_DEAD && MAY(E_KEPT, SENDER) -> word = returned; s = S_KEEPS; DID
     :: word == receiver && !IS_DEAD && MAY(E_RELEASED, SENDER) ->
        assert(committed); s = S_RELEASED; DID
#endif
#endif
     fi;
     CHECK }
  od
}

#ifdef LIES
proctype lying() {
end:
  do
  :: atomic { BEFORE_OFFER -> word = receiver }
  od
}
#endif

proctype receiving() {
end:
  do
  /* The offer arrives; or the connection is closed, or nothing comes: the word decides. */
  :: atomic { r == R_READY ->
     if
#ifdef NO_WORD
     :: offer_sent -> r = R_OWNS; committed = true; word = receiver
     :: r = R_NONE
#else
     :: word == offered && MAY(E_COMMITTED, RECEIVER) ->
        word = receiver; committed = true; r = R_OWNS; DID
     :: word != offered && MAY(E_NOTHING, RECEIVER) -> r = R_NONE; DID
#endif
     fi;
     CHECK }
  :: atomic { r == R_OWNS -> report_sent = true; r = R_TOLD }
  od
}

proctype connection() {
end:
  do
  :: offer_sent -> offer_sent = false
  :: report_sent -> report_sent = false
  od
}

proctype deaths() {
end:
  do
  :: atomic { !calm && s != S_DEAD && MAY(E_KILLED, SENDER) -> s = S_DEAD; DID }
  :: atomic { !calm && r != R_DEAD && MAY(E_KILLED, RECEIVER) -> r = R_DEAD; DID }
  :: calm = true; break
  od
}

/* Nothing more can happen. */
proctype at_rest() {
end:
  timeout;
#ifndef TRACE
  assert(s == S_DEAD || r == R_DEAD || SENDER_USES + RECEIVER_USES == 1)
#endif
}

init {
  atomic { run sending(); run receiving(); run connection(); run deaths(); run at_rest();
#ifdef LIES
    run lying()
#endif
  }
}
