//go:build linux

package torture

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// For the models a hold is two operations: it is had at some instant within the call that took it,
// and it ends at some instant in the time that hold.end says. What Check said is in that: the end
// comes after the last yes, and what allows the hold at the last yes allows it at all before, for a
// hold is in one piece. Calls that ended without the lock, or were never heard of again, had no
// right and are left out. A dead process that had it and could not tell blocks others, and acts no
// more.

// lockStep is one of the two operations of a hold.
type lockStep struct {
	*hold
	end bool
	// before is how many must have had the lock before this one, as their tokens have it: of those
	// who exclude it, or of all if it excludes all. Every hold is in the history, so another order
	// of tokens could not be completed: this only saves porcupine from trying.
	before int
}

// mutexState is a lock that one has at a time.
type mutexState struct {
	holder *hold
	last   uint64 // token
	had    int    // how many had it
}

// mutexModel: it is had when it is free, under a larger token than all before; and given back by
// whoever has it.
var mutexModel = porcupine.Model{
	Init: func() any { return mutexState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(mutexState), input.(lockStep)
		if op.end {
			return s.holder == op.hold, mutexState{nil, s.last, s.had}
		}
		return s.holder == nil && op.token > s.last && op.before == s.had, mutexState{op.hold, op.token, s.had + 1}
	},
	DescribeOperation: describeStep,
	DescribeState: func(state any) string {
		s := state.(mutexState)
		return fmt.Sprintf("%s, last token %d", names(s.holder), s.last)
	},
}

// bareModel is mutexModel without a word on tokens.
var bareModel = porcupine.Model{
	Init: func() any { return (*hold)(nil) },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(*hold), input.(lockStep)
		if op.end {
			return s == op.hold, (*hold)(nil)
		}
		return s == nil, op.hold
	},
	DescribeOperation: describeStep,
	DescribeState:     func(state any) string { return names(state.(*hold)) },
}

// rwState is a lock that one has for writing, or some for reading.
type rwState struct {
	writer          *hold
	readers         []*hold // never changed in place
	last, lastWrite uint64  // tokens, of all and of writers
	had, writes     int
}

// rwModel: it is had for writing when it is free, under a larger token than all before; and for
// reading when nobody writes, under a larger token than all writers before. The tokens of readers
// between two writers are in no order.
var rwModel = porcupine.Model{
	Init: func() any { return rwState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(rwState), input.(lockStep)
		switch {
		case op.end && op.call.read:
			i := slices.Index(s.readers, op.hold)
			if i < 0 {
				return false, s
			}
			s.readers = slices.Concat(s.readers[:i], s.readers[i+1:])
			return true, s
		case op.end:
			ok := s.writer == op.hold
			s.writer = nil
			return ok, s
		case op.call.read:
			ok := s.writer == nil && op.token > s.lastWrite && op.before == s.writes
			s.readers = append(slices.Clip(s.readers), op.hold)
			s.last, s.had = max(s.last, op.token), s.had+1
			return ok, s
		}
		ok := s.writer == nil && len(s.readers) == 0 && op.token > s.last && op.before == s.had
		return ok, rwState{writer: op.hold, last: op.token, lastWrite: op.token, had: s.had + 1, writes: s.writes + 1}
	},
	Equal: func(a, b any) bool {
		x, y := a.(rwState), b.(rwState)
		return x.writer == y.writer && x.last == y.last && x.lastWrite == y.lastWrite && sameHolds(x.readers, y.readers)
	},
	DescribeOperation: describeStep,
	DescribeState: func(state any) string {
		s := state.(rwState)
		return fmt.Sprintf("writer %s, readers %s, last token %d, of a writer %d", names(s.writer),
			names(s.readers...), s.last, s.lastWrite)
	},
}

// semaphoreState is a lock that some have at a time.
type semaphoreState struct {
	holders []*hold // never changed in place
	last    uint64
	had     int
}

// semaphoreModel: it is had when fewer than slots have it, under a larger token than all before.
func semaphoreModel(slots int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return semaphoreState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, op := state.(semaphoreState), input.(lockStep)
			if !op.end {
				ok := len(s.holders) < slots && op.token > s.last && op.before == s.had
				return ok, semaphoreState{append(slices.Clip(s.holders), op.hold), op.token, s.had + 1}
			}
			i := slices.Index(s.holders, op.hold)
			if i < 0 {
				return false, s
			}
			s.holders = slices.Concat(s.holders[:i], s.holders[i+1:])
			return true, s
		},
		Equal: func(a, b any) bool {
			x, y := a.(semaphoreState), b.(semaphoreState)
			return x.last == y.last && sameHolds(x.holders, y.holders)
		},
		DescribeOperation: describeStep,
		DescribeState: func(state any) string {
			s := state.(semaphoreState)
			return fmt.Sprintf("%s, last token %d", names(s.holders...), s.last)
		},
	}
}

// sameHolds says whether both are the same, in whatever order.
func sameHolds(a, b []*hold) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(h *hold) bool { return !slices.Contains(b, h) })
}

func names(holders ...*hold) string {
	var all []string
	for _, h := range holders {
		if h != nil {
			all = append(all, h.who)
		}
	}
	return "[" + strings.Join(all, " ") + "]"
}

func describeStep(input, _ any) string {
	op := input.(lockStep)
	if op.end {
		return fmt.Sprintf("end of %s (%d)", op.who, op.token)
	}
	return fmt.Sprintf("%v by %s: %d", op.call, op.who, op.token)
}

func modelOf(kind string) porcupine.Model {
	switch kind {
	case kindMutex:
		return mutexModel
	case kindRW:
		return rwModel
	case kindBare:
		return bareModel
	}
	return semaphoreModel(lockSlots)
}

// steps returns the operations of holds of one lock.
func steps(holds []*hold) (ops []porcupine.Operation) {
	before := ranks(holds)
	for i, h := range holds {
		e := h.end()
		ops = append(ops,
			porcupine.Operation{ClientId: i, Input: lockStep{h, false, before[h]}, Call: int64(h.called),
				Return: int64(h.back)},
			porcupine.Operation{ClientId: i, Input: lockStep{h, true, 0}, Call: int64(e.from), Return: int64(e.to)})
	}
	return ops
}

// ranks returns for each hold how many have a smaller token; for readers, how many writers have.
func ranks(holds []*hold) map[*hold]int {
	before := map[*hold]int{}
	all, writes := 0, 0
	for i, h := range slices.SortedFunc(slices.Values(holds),
		func(a, b *hold) int { return cmp.Compare(a.token, b.token) }) {
		before[h] = all
		if h.call.read {
			before[h] = writes
		}
		all = i + 1
		if !h.call.read {
			writes++
		}
	}
	return before
}

// lockVerdict is what porcupine says of one lock.
type lockVerdict struct {
	name   string
	holds  int
	result porcupine.CheckResult
	took   time.Duration
	fault  string  // what is wrong
	window []*hold // the shortest row of holds that cannot be
	html   string  // porcupine's picture of that
}

// judgeHolds asks porcupine of the holds of one lock, in the order in which they were had.
func judgeHolds(kind, name string, holds []*hold, limit time.Duration) *lockVerdict {
	v := &lockVerdict{name: name, holds: len(holds)}
	begin := time.Now()
	legal := func(part []*hold) porcupine.CheckResult {
		return porcupine.CheckOperationsTimeout(modelOf(kind), steps(part), limit)
	}
	v.result = legal(holds)
	v.took = time.Since(begin)
	switch v.result {
	case porcupine.Unknown:
		v.fault = fmt.Sprintf("porcupine found no answer within %v", limit)
	case porcupine.Illegal:
		// What is legal stays so when holds are left out: so the first end that is too far can be
		// searched for, and then the last beginning.
		end := sort.Search(len(holds), func(n int) bool { return legal(holds[:n+1]) == porcupine.Illegal })
		part := holds[:min(end+1, len(holds))]
		begin := sort.Search(len(part), func(n int) bool { return legal(part[n+1:]) != porcupine.Illegal })
		v.window = part[min(begin, len(part)-1):]
		v.fault = "no order of these holds could be:"
		for _, h := range v.window {
			v.fault += "\n    " + h.String()
		}
	case porcupine.Ok:
		v.fault = twice(holds)
	}
	return v
}

// twice tells of a token that two had. Of two readers the model does not see it.
func twice(holds []*hold) string {
	seen := map[uint64]*hold{}
	for _, h := range holds {
		if first := seen[h.token]; first != nil {
			return fmt.Sprintf("one token, two holds:\n    %v\n    %v", first, h)
		}
		seen[h.token] = h
	}
	return ""
}

// draw writes porcupine's picture of the window to a file.
func (v *lockVerdict) draw(kind, path string) error {
	_, info := porcupine.CheckOperationsVerbose(modelOf(kind), steps(v.window), time.Minute)
	v.html = path
	return porcupine.VisualizePath(modelOf(kind), info, path)
}
