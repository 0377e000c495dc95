package agent

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
)

// slotsKept is how long the slot of a member that does not stand any more keeps WAL for it. After
// that the member must be cloned.
const slotsKept = 30 * time.Minute

// keepSlots keeps a slot for each other member on this server, also while it is a standby: whoever
// is promoted has the WAL that the others need. A standby always connects through its slot. Without
// one, a primary would count it twice while its old connection is not yet seen dead, and with k = 2
// acknowledge what one standby alone has.
func (a *Agent) keepSlots(ctx context.Context) {
	k, err := newSlotKeeper(a.dir, boottime.Now())
	if err != nil {
		a.cfg.Log.Warn("slots of members that are gone will stay", "err", err)
	}
	for ctx.Err() == nil {
		members, primary, up, paused := make(chan map[string]core.LSN, 1), false, false, false
		a.send(ctx, func() {
			primary, up = a.seen.Server.Primary, a.seen.Server.Running
			paused = a.seen.Record != nil && a.seen.Record.Paused != nil
			members <- a.others()
		})
		select {
		case others := <-members:
			if paused { // nobody else stands then: all slots are kept
				for name := range k.seen {
					k.seen[name] = boottime.Now()
				}
			}
			if up {
				k.keep(ctx, a.server, boottime.Now(), others, primary, a.cfg.Log)
			}
		case <-ctx.Done():
			return
		}
		pause(ctx, a.cfg.LoopWait)
	}
}

// others returns the slots of the other members who stand or stream, with where their WAL ended
// when they said so last. During a pause nobody else stands: those that the record names count too.
func (a *Agent) others() map[string]core.LSN {
	ends := map[string]core.LSN{}
	if line := a.seen.Line; line != nil {
		for _, x := range line.Members {
			ends[x.Name] = a.heard[x.Name].LSN
		}
	}
	if r := a.seen.Record; r != nil && r.Paused != nil {
		for _, v := range append([]core.Identity{r.Primary}, r.Voters...) {
			ends[v.Name] = max(ends[v.Name], 0)
		}
	}
	for _, x := range a.seen.Server.Senders {
		ends[x.Name] = max(ends[x.Name], x.Flushed)
	}
	all := map[string]core.LSN{}
	for name, at := range ends {
		if name != a.cfg.Name {
			all[server.SlotName(name)] = at
		}
	}
	return all
}

// slotKeeper knows which slots of a server are for other members, also those of members that are
// gone: their names outlive the agent, in a file. A slot that it does not know is somebody else's.
type slotKeeper struct {
	path string
	seen map[string]time.Duration // by the slot's name: when its member stood last
	made map[string]bool          // of these, those that the server has
	kept []string                 // the names in the file
}

func newSlotKeeper(dir string, now time.Duration) (*slotKeeper, error) {
	k := &slotKeeper{path: filepath.Join(dir, "slots.json"), seen: map[string]time.Duration{}, made: map[string]bool{}}
	_, err := durable.ReadJSON(k.path, &k.kept, "remove it")
	for _, name := range k.kept {
		k.seen[name] = now
	}
	return k, err
}

// slotServer is what a slotKeeper needs of a server.
type slotServer interface {
	EnsureSlot(ctx context.Context, name string) error
	AdvanceSlot(ctx context.Context, name string, to core.LSN) error
	DropSlot(ctx context.Context, name string) error
	Slots(ctx context.Context) ([]server.Slot, error)
}

// keep makes the slots of these members, drops those of members that have been gone for long, and
// moves those from which nobody reads.
func (k *slotKeeper) keep(ctx context.Context, s slotServer, now time.Duration, others map[string]core.LSN,
	primary bool, log *slog.Logger,
) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	for name := range others {
		k.seen[name] = now
	}
	if err := k.note(); err != nil { // before it is made: else it might outlive everybody who knows whose it is
		log.Warn("slots are not made", "err", err)
		return
	}
	for name, at := range others {
		if !k.made[name] {
			if err := s.EnsureSlot(ctx, name); err != nil {
				log.Debug("slot", "name", name, "err", err)
				continue
			}
			k.made[name] = true
		}
		if !primary && at > 0 { // nobody reads from this slot yet: without this it would keep all WAL for ever
			_ = s.AdvanceSlot(ctx, name, at) // tried again the next time
		}
	}
	slots, err := s.Slots(ctx)
	clear(k.made) // the server may have been made anew: a clone or a rewind has none
	if err != nil {
		return
	}
	there := map[string]bool{}
	for _, x := range slots {
		there[x.Name] = true
		_, ours := others[x.Name]
		k.made[x.Name] = ours
		if at, ok := k.seen[x.Name]; ok && now-at > slotsKept && s.DropSlot(ctx, x.Name) == nil {
			there[x.Name] = false
		}
	}
	for name, at := range k.seen {
		if !there[name] && now-at > slotsKept {
			delete(k.seen, name)
		}
	}
}

// note has the file name all slots that are known, and no others.
func (k *slotKeeper) note() error {
	names := slices.Sorted(maps.Keys(k.seen))
	if slices.Equal(names, k.kept) {
		return nil
	}
	err := durable.WriteJSON(k.path, names)
	if err == nil {
		k.kept = names
	}
	return err
}
