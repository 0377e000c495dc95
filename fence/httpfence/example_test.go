package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/httpfence"
	"github.com/primacy-go/primacy/memstore"
)

func Example() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "example-")
	defer os.RemoveAll(dir)

	// The server: any handler, behind a fence that remembers.
	memory, err := httpfence.Dir(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer memory.Close()
	ledger := &httpfence.Fence{Name: "ledger", Memory: memory}
	server := httptest.NewServer(ledger.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		fmt.Printf("handled: %s\n", text)
	})))
	defer server.Close()

	// The leader: its client sends the term's token.
	session, _ := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	defer session.Close(ctx)
	term, _ := session.Election("ledger").Campaign(ctx, nil)
	client := httpfence.Client(term)
	if err := httpfence.Raise(ctx, client, server.URL); err != nil { // once, before the first read
		fmt.Println(err)
	}
	if resp, err := client.Post(server.URL, "text/plain", strings.NewReader("from the leader")); err == nil {
		resp.Body.Close()
	}

	// A leader of the past, thawed: its Check has been made long ago.
	late := &http.Client{Transport: &httpfence.Transport{Stamp: fence.Stamp{Name: "ledger", Token: term.Token() - 1}}}
	_, err = late.Post(server.URL, "text/plain", strings.NewReader("late"))
	fmt.Println(errors.Is(err, fence.ErrStale))

	_ = term.Resign(ctx)
	_, err = client.Post(server.URL, "text/plain", strings.NewReader("after the term"))
	fmt.Println(errors.Is(err, primacy.ErrResigned)) // not even sent
	// Output:
	// handled: from the leader
	// true
	// true
}
