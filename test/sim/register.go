package sim

// register is two resources in one: behind a fence, and without. Each write is based on what its
// writer last read, so a lost one shows.
type register struct {
	token  uint64 // the largest seen
	n      int64  // the last write of that token
	value  int64  // counts the writes that were accepted
	writer *term  // of that token
	loose  uint64 // token of the last write of the one without a fence
}

type write struct {
	tm    *term
	token uint64
	n     int64 // counts within the term
	base  int64
	raise bool // only raises the fence and reads: the first thing a new leader does
}

type answer struct {
	refused bool
	value   int64
}

// apply carries out a write in one step.
func (r *register) apply(w *World, wr write) answer {
	if !wr.raise {
		w.count.Unfenced++
		if wr.token < r.loose {
			w.count.Stale++
			w.say(nil, detail, "unfenced register: a write of token %d lands after one of %d", wr.token, r.loose)
		}
		r.loose = max(r.loose, wr.token)
	}
	if w.plan.NoToken || w.judge.anew[wr.tm.c.name] > 0 {
		return answer{value: r.value} // there is nothing to fence with
	}
	if !w.plan.Broken.NoFence && (wr.token < r.token || wr.token == r.token && wr.n <= r.n && !wr.raise) {
		w.count.Refused++
		return answer{refused: true, value: r.value}
	}
	if wr.token == r.token && r.writer != wr.tm {
		w.judge.fail(RuleFence, "%s: two terms write under one token %d: %s and %s", nameOf(wr.tm.c.name), wr.token,
			r.writer.n.name, wr.tm.n.name)
	}
	if wr.token < r.token {
		w.judge.fail(RuleFence, "%s: a write under token %d is taken after one under %d", nameOf(wr.tm.c.name),
			wr.token, r.token)
	}
	if wr.token > r.token {
		r.n = 0
	}
	r.token, r.writer, r.n = wr.token, wr.tm, max(r.n, wr.n)
	if wr.raise {
		return answer{value: r.value}
	}
	if wr.base != r.value {
		w.judge.fail(RuleFence, "%s: %s writes under token %d over %d writes that it has not seen",
			nameOf(wr.tm.c.name), wr.tm.n.name, wr.token, r.value-wr.base)
	}
	r.value++
	w.count.Fenced++
	return answer{value: r.value}
}
