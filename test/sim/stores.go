package sim

// model is a kind of simulated store.
type model struct {
	name string
	of   int                    // so many of the seeds of "all"
	plan func(p *Plan, r *rng)  // what its plans have of their own
	open func(w *World) backend // an empty store
}

var models = []model{
	{"plain", 4, planPlain, func(w *World) backend { return newPlain(w) }},
	{"beat", 0, planBeat, func(w *World) backend { return newPlain(w) }},
	{"shards", 0, planGroup, newGroupStore},
	{"redis", 2, planRedis, func(w *World) backend { return newRedis(w) }},
	{"postgres", 1, planPostgres, func(w *World) backend { return newPostgres(w) }},
	{"register", 1, planRegisters, func(w *World) backend { return newRegisters(w) }},
	{"kubernetes", 1, planKube, func(w *World) backend { return newKube(w) }},
	{"quorum", 1, planQuorum, func(w *World) backend { return newQuorum(w) }},
	{"zk", 2, planEnsemble, func(w *World) backend { return newEnsemble(w) }},
}

// Stores lists what a plan's store may be.
func Stores() (names []string) {
	for _, m := range models {
		names = append(names, m.name)
	}
	return names
}

func modelOf(name string) model {
	for _, m := range models {
		if m.name == name {
			return m
		}
	}
	return models[0]
}

// pick chooses a store for a seed of "all".
func pick(r *rng) string {
	sum := 0
	for _, m := range models {
		sum += m.of
	}
	at := r.intn(sum)
	for _, m := range models {
		if at -= m.of; at < 0 {
			return m.name
		}
	}
	return ""
}

func planPlain(p *Plan, r *rng) { p.Rounds = [...]int64{0, 0, 700 * ms}[r.intn(3)] }

func planBeat(p *Plan, r *rng) {
	p.Beat = [...]int64{300 * ms, 500 * ms, sec, 1900 * ms}[r.intn(4)]
	p.Net.Base = min(p.Net.Base, p.Beat/40) // or no renewal is ever answered in its time
}
