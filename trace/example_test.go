package trace_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/trace"
)

func work(ctx context.Context, tracer *trace.Tracer, term *primacy.Term) error {
	ctx, span := otel.Tracer("billing").Start(ctx, "invoice", oteltrace.WithLinks(tracer.Link(term)))
	defer span.End()
	return ctx.Err()
}

func Example() {
	session, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		panic(err)
	}
	defer session.Close(context.Background())
	tracer := trace.New(session, trace.Options{})
	defer tracer.Close()
	err = session.Run(context.Background(), "billing/invoicer", func(ctx context.Context, term *primacy.Term) error {
		return work(ctx, tracer, term)
	})
	fmt.Println(err)
	// Output: <nil>
}
