package concurrency

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// What the answer to a Txn that enters a line says of the claim that it was sent for.
func TestJudge(t *testing.T) {
	t.Parallel()
	at := func(rev int64) *mvccpb.KeyValue { return &mvccpb.KeyValue{CreateRevision: rev} }
	for _, c := range []struct {
		what                     string
		c                        claim
		hasPut, foreign, givenUp bool
		own                      *mvccpb.KeyValue
		want                     verdict
	}{
		{what: "a new key", hasPut: true, want: put},
		{what: "a claim was deleted, and the key is put again", c: claim{rev: 7}, hasPut: true, want: deleted},
		{what: "TryLock finds somebody", want: locked},
		{what: "its own key", c: claim{rev: 7, counts: true}, own: at(7), want: stood},
		{what: "a key of an earlier session", own: at(7), foreign: true, want: stood},
		{what: "deleted and made anew", c: claim{rev: 7}, own: at(8), want: deleted},
		{what: "taken over by another session", c: claim{rev: 7, counts: true}, own: at(7), foreign: true,
			want: deleted},
		{what: "a key that was given up", own: at(7), givenUp: true, want: leftover},
		{what: "given up, then taken up by another session", own: at(7), foreign: true, givenUp: true, want: stood},
	} {
		if got := judge(&c.c, c.hasPut, c.own, c.foreign, c.givenUp); got != c.want {
			t.Errorf("%s: verdict %d, want %d", c.what, got, c.want)
		}
	}
}
