package main

import (
	"fmt"
	"io"
	"slices"
)

// benches are all measurements on a store, in the order in which they run: the short ones first.
// Those of etcd ask its servers what they cost them, and have goals of their own; those after row
// 30 are the same on every store, and those after row 50 are Kubernetes'.
func benches(kind string) []*Bench {
	switch kind {
	case "etcd":
	case "kubernetes":
		return kubernetesBenches()
	default:
		return slices.Concat(aloneBenches(), passBenches(), wireBenches(), endBenches())
	}
	return slices.Concat(handoverBenches(), lockBenches(), keyBenches(), checkBenches(), manyBenches(),
		crowdBenches(), steadyBenches(), safetyBenches(), frozenBenches(), crashBenches(), programBenches())
}

func knownRows(kind string) []int {
	var rows []int
	for _, b := range benches(kind) {
		for _, l := range b.Lines {
			rows = append(rows, l.Row)
		}
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// print writes the tables.
func (r *Report) print(w io.Writer) {
	fmt.Fprintf(w, "%s; %s; medians of %d repetitions in turns; times are p50 / p99\n\n", r.Setup, r.Machine, r.Reps)
	writeTable(w, r.Results, r.Peer)
	if len(r.Growth) > 0 {
		fmt.Fprintf(w, "\nHow cost grows\n\n")
		writeTable(w, r.Growth, r.Peer)
	}
}
