package main

// One lock that all want: rows 10 to 13.

// noWorse asks for nothing but a 99th percentile that is no worse than the peer's.
var noWorse = Goal{Text: "p99 no worse"}

func lockBenches() []*Bench {
	remote, mixed, local := crowd(8, 1, 0), crowd(4, 8, 16), crowd(1, 8, 64)
	return []*Bench{
		{Name: "one lock, 8 processes", Run: remote.run, Floor: remote.run, Lines: []Line{
			{Row: 10, Key: "rate", What: "one lock, 8 processes × 1: hand-overs", Unit: Rate, Higher: true,
				Chart: "contended lock, 8 processes", Goal: Goal{Floor: 0.97}},
			{Row: 10, Key: "wait", What: "… one waits for it", Unit: Seconds, Goal: noWorse},
			{Row: 10, Key: "longest", What: "… the longest wait", Unit: Seconds},
			{Row: 10, Key: "share", What: "… share, least to most of a process", Unit: Share, Higher: true}}},
		{Name: "one lock, 4 processes × 8", Run: mixed.run, Lines: []Line{
			{Row: 11, Key: "rate", What: "one lock, 4 processes × 8 goroutines, ≤ 16 local: hand-overs", Unit: Rate, Higher: true, Chart: "contended lock, 4 processes × 8",
				Goal: Goal{Ratio: 70}, Goal3: &Goal{Ratio: 50}},
			{Row: 11, Key: "wait", What: "… one waits for it", Unit: Seconds, Goal: noWorse},
			{Row: 11, Key: "longest", What: "… the longest wait", Unit: Seconds},
			{Row: 11, Key: "share", What: "… share, least to most of a process", Unit: Share, Higher: true, Goal: Goal{Least: 0.95}}}},
		{Name: "one lock, one process × 8", Run: local.run, Lines: []Line{
			{Row: 12, Key: "rate", What: "one lock, one process × 8 goroutines, ≤ 64 local: hand-overs", Unit: Rate, Higher: true, Chart: "contended lock, one process × 8",
				Goal: Goal{Ratio: 1000}},
			{Row: 12, Key: "wait", What: "… one waits for it", Unit: Seconds, Goal: noWorse}}},
		{Name: "what a hand-over costs etcd", Run: remote.metered, Lines: []Line{
			{Row: 13, Key: "requests", What: "requests for each hand-over, 8 processes × 1", Unit: Count, Goal: Goal{Most: 2.05, Text: "≤ 2"}},
			{Row: 13, Key: "stream", What: "… and messages on watches", Unit: Count},
			{Row: 13, Key: "proposals", What: "… and proposals in raft", Unit: Count, Goal: Goal{Most: 2.05, Text: "≤ 2"}}}},
		{Name: "what a hand-over costs etcd, others wait", Run: crowd(4, 8, 1).metered, Lines: []Line{
			{Row: 13, Key: "requests", What: "requests for each hand-over, 4 processes × 8, none local", Unit: Count, Goal: Goal{Most: 1.05, Text: "≤ 1"}},
			{Row: 13, Key: "stream", What: "… and messages on watches", Unit: Count},
			{Row: 13, Key: "proposals", What: "… and proposals in raft", Unit: Count, Goal: Goal{Most: 1.05, Text: "≤ 1"}}}},
	}
}
