package sim

import "slices"

// Shrink returns a smaller plan that breaks the same promise, and its result: fewer faults,
// machines and names, less noise, less time. It plays at most so many runs. A plan that breaks
// nothing comes back as it is.
func Shrink(p *Plan, runs int) (*Plan, Result) {
	w := &World{}
	defer w.Close()
	s := &shrinker{w: w, left: runs, best: p.clone()}
	s.res = w.Run(p, nil)
	if s.res.Violation == nil {
		return s.best, s.res
	}
	s.rule = s.res.Violation.Rule
	for before := -1; before != s.score() && s.left > 0; {
		before = s.score()
		s.cut()
		s.dropFaults()
		s.dropNodes()
		s.quieten()
		s.shorten()
	}
	return s.best, s.res
}

type shrinker struct {
	w    *World
	left int
	rule string
	best *Plan
	res  Result
}

func (p *Plan) clone() *Plan {
	q := *p
	q.Rates, q.Offsets, q.StoreRates = slices.Clone(p.Rates), slices.Clone(p.Offsets), slices.Clone(p.StoreRates)
	q.Faults = slices.Clone(p.Faults)
	return &q
}

// score is what gets smaller.
func (s *shrinker) score() int {
	p := s.best
	n := len(p.Faults)*100 + p.Nodes*100 + p.Names*100 + int(s.res.Violation.At/(sec/4))
	for _, v := range p.noise() {
		if *v != 0 {
			n += 10
		}
	}
	return n
}

// try takes a changed plan over if it breaks the same promise. What is random falls differently in
// a smaller world, so some other seeds are tried too.
func (s *shrinker) try(change func(p *Plan) bool) bool {
	q := s.best.clone()
	if !change(q) {
		return false
	}
	for i := range 8 {
		if s.left <= 0 {
			return false
		}
		s.left--
		q.Seed = s.best.Seed + uint64(i)
		if r := s.w.Run(q, nil); r.Violation != nil && r.Violation.Rule == s.rule {
			s.best, s.res = q, r
			return true
		}
	}
	return false
}

// cut ends the faults where the promise was broken.
func (s *shrinker) cut() {
	s.try(func(p *Plan) bool {
		end := s.res.Violation.At + 1
		n := len(p.Faults)
		p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.At >= end })
		return len(p.Faults) < n
	})
}

// dropFaults leaves faults out, many at a time, then few.
func (s *shrinker) dropFaults() {
	for size := len(s.best.Faults); size > 0; size /= 2 {
		for i := 0; i < len(s.best.Faults); {
			if !s.try(func(p *Plan) bool {
				p.Faults = slices.Delete(p.Faults, i, min(i+size, len(p.Faults)))
				return true
			}) {
				i += size
			}
		}
	}
}

func (s *shrinker) dropNodes() {
	for i := s.best.Nodes - 1; i >= 0 && s.best.Nodes > 1; i-- {
		s.try(func(p *Plan) bool {
			p.Nodes--
			p.Rates, p.Offsets = slices.Delete(p.Rates, i, i+1), slices.Delete(p.Offsets, i, i+1)
			p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return int(f.Node) == i })
			for k := range p.Faults {
				if int(p.Faults[k].Node) > i {
					p.Faults[k].Node--
				}
			}
			return true
		})
	}
	s.try(func(p *Plan) bool {
		p.Names--
		return p.Names > 1 || p.Names == 1 && !p.Group.On
	})
}

func (p *Plan) noise() []*int64 {
	n := &p.Net
	all := []*int64{&n.Loss, &n.Dup, &n.Late, &n.Deaf, &n.Flying, &n.Stall, &n.Stumble, &n.Hang, &n.Refuse, &p.Quits,
		&p.Lazy, &p.Rest, &p.Rounds}
	for _, list := range [][]int64{p.Rates, p.Offsets, p.StoreRates} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	return all
}

// quieten takes noise out.
func (s *shrinker) quieten() {
	for i := range s.best.noise() {
		s.try(func(p *Plan) bool {
			v := p.noise()[i]
			was := *v
			*v = 0
			return was != 0
		})
	}
	s.try(func(p *Plan) bool {
		was := p.Think
		p.Think = p.TTL / 4
		return was != p.Think
	})
}

// shorten lets everything happen earlier, and faults last less long.
func (s *shrinker) shorten() {
	for i := range s.best.Faults {
		for _, by := range []int64{10 * sec, 3 * sec, sec} {
			for s.try(func(p *Plan) bool {
				for k := i; k < len(p.Faults); k++ {
					p.Faults[k].At -= by
				}
				return p.Faults[i].At > sec && (i == 0 || p.Faults[i].At >= p.Faults[i-1].At)
			}) {
			}
		}
		s.try(func(p *Plan) bool {
			p.Faults[i].For /= 2
			return p.Faults[i].For > 0
		})
	}
}
