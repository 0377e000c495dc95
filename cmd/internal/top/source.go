package top

import (
	"context"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

// TermJournals is where the terms of elections are recorded, by name.
const TermJournals = "terms/"

// SourceOf tells what a store can tell of the names below prefix, with times in the zone.
func SourceOf(s *primacy.Session, st driver.Store, prefix string, zone *time.Location) Source {
	elected := shown.NewElected(s, st, true)
	list := func(ctx context.Context) ([]primacy.State, error) {
		states, err := s.List(ctx, prefix)
		return elected.Correct(ctx, states...), err
	}
	src := Source{Store: st.Caps().Store, List: list}
	if o, ok := st.(driver.LeaseViewer); ok {
		src.Leases = o.Remaining
	}
	if j, ok := st.(driver.Journal); ok && st.Caps().Token != driver.TokenNone {
		src.Recorded = func(ctx context.Context) ([]string, error) {
			names, err := j.Journals(ctx, TermJournals+prefix)
			for i := range names {
				names[i] = strings.TrimPrefix(names[i], TermJournals)
			}
			return names, err
		}
		src.History = func(ctx context.Context, name string, limit int) ([]Term, error) {
			periods, err := s.Election(name).History(ctx, limit)
			var terms []Term
			for _, r := range periods {
				t := Term{Token: r.Token, From: r.From, To: r.To, ToAfter: r.ToAfter, ToBefore: r.ToBefore,
					ID: r.ID, Reason: r.Reason, By: r.By, Text: r.Text}
				if r.Reason != primacy.Leads {
					t.Why = shown.Why(r, zone)
				}
				terms = append(terms, t)
			}
			return terms, err
		}
	}
	return src
}
