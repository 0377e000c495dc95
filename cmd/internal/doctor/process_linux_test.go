package doctor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// unheard is a store whose answer to the end of a lease is lost.
type unheard struct{ driver.Store }

func (unheard) Line(context.Context, string) (driver.Line, error) {
	return driver.Line{Holder: &driver.Entry{Owner: "a", Lease: "l", Token: 5}}, nil
}

func (unheard) Revoke(context.Context, string) error { return errors.New("no answer") }

// That the end of a lease may have come late excuses the term that it hit, and no term of later:
// two leaders then are two leaders.
func TestALostAnswerExcusesNoLaterTerm(t *testing.T) {
	for late, held := range map[time.Duration]bool{time.Second: true, time.Hour: false} {
		const ttl = 2 * time.Second
		p := &process{id: "a", run: &run{o: Torture{Store: unheard{}, TTL: ttl}, judge: newJudge("n", ttl), name: "n"}}
		at := now()
		if !p.EndLease(t.Context()) {
			t.Fatal("no lease was ended")
		}
		j := p.run.judge
		j.act("a", 5, at+late, at+late+100, 10)
		j.act("b", 9, at+late+50, at+late+200, 10) // two leaders
		j.proclaimed(5, 1)
		if v := verdictOf(j); (v.Outcome == Held) != held {
			t.Errorf("two leaders %v after the request: %+v", late, v)
		}
	}
}
