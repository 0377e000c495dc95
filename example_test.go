package primacy_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
)

// Campaign, lead, resign.
func Example() {
	ctx := context.Background()
	store := memstore.New(memstore.Options{})
	session, err := primacy.NewSession(store, primacy.Options{ID: "web-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close(ctx)

	term, err := session.Election("billing/invoicer").Campaign(ctx, []byte("10.0.0.7:8080"))
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
	session, _ := primacy.NewSession(store, primacy.Options{})
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

// Follow who leads.
func ExampleElection_Observe() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	session, _ := primacy.NewSession(memstore.New(memstore.Options{}), primacy.Options{ID: "web-1"})
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
