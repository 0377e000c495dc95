package primacy_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
)

// Campaign, lead, resign.
func Example() {
	ctx := context.Background()
	store := memstore.New(memstore.Options{})
	session, err := primacy.NewSession(store, &primacy.Options{ID: "web-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close(ctx)

	term, err := session.Election("billing/invoicer").Campaign(ctx,
		&primacy.CampaignOptions{Value: []byte("10.0.0.7:8080")})
	if err != nil {
		fmt.Println(err)
		return
	}
	if term.Check() == nil { // ask before each act
		fmt.Println("leading, first term")
	}
	leader, _ := session.Election("billing/invoicer").Leader(ctx)
	fmt.Printf("%s at %s\n", leader.ID, leader.Value)
	_ = term.Resign(ctx) // the work has stopped
	fmt.Println(errors.Is(term.Check(), primacy.ErrResigned))
	// Output:
	// leading, first term
	// web-1 at 10.0.0.7:8080
	// true
}

// A candidate whose work stops when its term ends, with the cause, and that leads again.
func ExampleSession_Run() {
	ctx := context.Background()
	store := memstore.New(memstore.Options{})
	session, _ := primacy.NewSession(store, nil)
	defer session.Close(ctx)

	terms := 0
	err := session.Run(ctx, "report", func(ctx context.Context, term *primacy.Term) error {
		if terms++; terms == 2 {
			fmt.Println("the work is done in the second term")
			return nil
		}
		store.Expire("report") // the lease is lost
		<-ctx.Done()
		fmt.Println("stop:", errors.Is(context.Cause(ctx), primacy.ErrDeposed))
		return nil
	})
	fmt.Println(err)
	// Output:
	// stop: true
	// the work is done in the second term
	// <nil>
}

// What a program of client-go's leader election becomes.
func ExampleCandidate_RunCallbacks() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	session, _ := primacy.NewSession(memstore.New(memstore.Options{}), &primacy.Options{ID: "web-1"})
	defer session.Close(context.Background())

	err := session.Candidate("my-controller", nil).RunCallbacks(ctx, primacy.LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) {
			fmt.Println("started")
			cancel() // as a signal does
			<-ctx.Done()
			fmt.Println("all that was started has stopped")
		},
		OnStoppedLeading: func() { fmt.Println("stopped, and nobody else leads yet") },
	})
	fmt.Println(err)
	// Output:
	// started
	// all that was started has stopped
	// stopped, and nobody else leads yet
	// <nil>
}

// Send requests to whoever leads, and to nobody who is dead.
func ExampleCandidate_Events() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	session, _ := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	defer session.Close(context.Background())
	candidate := session.Candidate("db", &primacy.CampaignOptions{Value: []byte("10.0.0.7:5432")})
	go candidate.Run(ctx, func(ctx context.Context, _ *primacy.Term) error {
		<-ctx.Done()
		return nil
	})

	address := ""
	for event := range candidate.Events(ctx) {
		next := ""
		if event.Leader != nil {
			next = string(event.Leader.Value)
		}
		if next != address {
			address = next
			fmt.Printf("requests go to %q\n", address)
		}
		if event.Kind == primacy.CandidateElected {
			cancel() // the process is asked to stop
		}
	}
	// Output:
	// requests go to "10.0.0.7:5432"
	// requests go to ""
}

// Follow who leads.
func ExampleElection_Observe() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	session, _ := primacy.NewSession(memstore.New(memstore.Options{}), &primacy.Options{ID: "web-1"})
	defer session.Close(context.WithoutCancel(ctx))
	election := session.Election("db")

	for state, err := range election.Observe(ctx) {
		switch {
		case err != nil:
			fmt.Println("the store does not answer; last known:", state.Leader)
		case state.Leader == nil:
			fmt.Println("nobody leads")
			term, _ := election.Campaign(ctx, nil)
			defer term.Resign(context.WithoutCancel(ctx))
		default:
			fmt.Println(state.Leader.ID, "leads")
			return
		}
	}
	// Output:
	// nobody leads
	// web-1 leads
}

// One of many processes that share out shards among them: each shard has one owner, and nobody
// waits on a goroutine of his own.
func ExampleSession_Elections() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store := memstore.New(memstore.Options{})
	session, _ := primacy.NewSession(store, &primacy.Options{ID: "worker-1"})
	defer session.Close(context.WithoutCancel(ctx))

	shards := session.Elections(nil)
	if err := shards.Stand("shard/1", "shard/2", "shard/3"); err != nil {
		fmt.Println(err)
		return
	}
	own, lost := map[string]*primacy.Term{}, false
	for term, err := range shards.Terms(ctx) {
		switch {
		case term == nil:
			fmt.Println(err) // the store will not have that name
		case err == nil:
			own[term.Name()] = term // start its work, which asks term.Check before each act
		default:
			fmt.Println(term.Name(), "lost:", errors.Is(err, primacy.ErrDeposed))
			delete(own, term.Name())  // stop its work
			_ = term.Resign(ctx)      // it has stopped
			shards.Stand(term.Name()) // behind those who wait
		}
		if len(own) == 3 && !lost {
			lost = true
			store.Remove("shard/2", uint64(own["shard/2"].Token())) // an operator takes one away
		} else if len(own) == 3 {
			break
		}
	}
	fmt.Println("owns", len(own))
	_ = shards.Resign(ctx, slices.Collect(maps.Values(own))...)
	fmt.Println(shards.Close(ctx))
	// Output:
	// shard/2 lost: true
	// owns 3
	// <nil>
}
