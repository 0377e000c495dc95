package core

import "testing"

// Nobody else waits as long as the store would have told: a kept tenure is handed on until its tokens are used up.
func TestAKeptTenureIsHandedOnUntilItIsWanted(t *testing.T) {
	j := newJudged(t)
	w := j.come(QueueEvent{Keep: true})
	tn := j.win()
	j.now += 2 * Window
	for range 3 * Turns {
		j.unlock(w)
		if w = j.come(QueueEvent{Keep: true}); j.holds[w] != tn {
			t.Fatal("not handed on though nobody else waits")
		}
	}
	for range 10 {
		j.come(QueueEvent{Keep: true, Turns: 4})
	}
	j.want(tn)
	for !j.closed[tn] {
		j.unlock(holder(j))
	}
	if got := j.turns[tn] - j.wanted[tn]; got != 4 {
		t.Errorf("%d more after another was heard to wait, want 4", got)
	}
	tn = j.win()
	j.want(tn)
	j.now += Window
	j.unlock(holder(j))
	if !j.closed[tn] {
		t.Error("handed on after the window, though another waits")
	}
}

// The last turn of a claim's tokens ends its tenure, also if nobody else wants it.
func TestAKeptTenureEndsWithItsTokens(t *testing.T) {
	var q Queue
	q.Step(0, QueueEvent{Kind: Arrive, Waiter: 1, Keep: true})
	q.Step(0, QueueEvent{Kind: Win, Tenure: 2})
	for n := 1; n < MaxTurns; n++ {
		if !q.Rest(2) {
			t.Fatalf("given back after %d turns", n)
		}
		if _, turn, ok := q.Retake(); !ok || turn != n {
			t.Fatalf("turn %d, %v, want %d", turn, ok, n)
		}
	}
	if q.Rest(2) {
		t.Fatal("it is kept though nobody can have it any more")
	}
	if o := q.Step(0, QueueEvent{Kind: Unlock, Tenure: 2}); len(o) != 1 || o[0].Do != CloseIt {
		t.Fatalf("got %+v", o)
	}
}

// A reader of the same process wants it too.
func TestAKeptTenureGoesToAReaderOfItsProcess(t *testing.T) {
	j := newJudged(t)
	w := j.come(QueueEvent{Keep: true})
	tn := j.win()
	j.unlock(w)
	if j.closed[tn] {
		t.Fatal("not kept")
	}
	r := j.arrive(true, false)
	j.win()
	if _, ok := j.holds[r]; !ok || !j.closed[tn] {
		t.Error("the reader waits for what nobody holds")
	}
}

// Who does not ask for it keeps nothing.
func TestTheLastHolderSaysWhetherItIsKept(t *testing.T) {
	j := newJudged(t)
	w := j.come(QueueEvent{Keep: true})
	tn := j.win()
	j.unlock(w)
	w = j.come(QueueEvent{})
	if j.holds[w] != tn {
		t.Fatal("what is kept is for all of the process")
	}
	j.unlock(w)
	if !j.closed[tn] {
		t.Error("kept for one who did not ask for it")
	}
}

// The short forms do nothing where there is nothing to do.
func TestAKeptTenureRestsOnce(t *testing.T) {
	var q Queue
	if _, _, ok := q.Retake(); ok || q.Rest(0) {
		t.Fatal("something of nothing")
	}
	q.Step(0, QueueEvent{Kind: Arrive, Waiter: 1, Keep: true})
	q.Step(0, QueueEvent{Kind: Win, Tenure: 2})
	if _, _, ok := q.Retake(); ok {
		t.Fatal("two hold it")
	}
	if q.Rest(3) || !q.Rest(2) || q.Rest(2) {
		t.Fatal("given back by who does not hold it")
	}
	if _, _, ok := q.Retake(); !ok {
		t.Fatal("not to be had again")
	}
	if _, _, ok := q.Retake(); ok {
		t.Fatal("two hold it")
	}
}
