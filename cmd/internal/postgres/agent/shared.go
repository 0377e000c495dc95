package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
)

// configFile holds the last shared configuration that was good, for a restart while the one in the
// store is not.
const configFile = "config.json"

// pendingEvery is how often a server is asked what waits for a restart, though nothing has changed.
const pendingEvery = 5 * time.Second

// tryLimit bounds the question whether PostgreSQL takes some parameters, and its loading of them.
const tryLimit = 10 * time.Second

// configurable is what [shared] asks of the server.
type configurable interface {
	Try(context.Context, map[string]string) error
	Configure(context.Context, map[string]string) error
	Pending(context.Context) (server.Pending, error)
	Overridden(context.Context) ([]server.Override, error)
}

// inForce is what of the shared configuration is in force on this member.
type inForce struct {
	settings core.Settings
	known    bool        // it was in the store once; else it is what the file says under [first]
	read     bool        // the store has been read in this life: pause is true
	pause    *core.Pause // nil: it asks for none
	version  uint64      // of the one that was judged last
	refused  string      // why that one is not in force; empty: it is
	pending  string      // the parameters that wait for a restart
	held     string      // those that stay larger than they were asked for
	loads    uint64      // how often the server has loaded parameters
	// The settings that the server has from elsewhere than where primacy sets them.
	overridden []server.Override
	full       []string // the directories whose file system is full, or nearly so
}

// shared follows the shared configuration of the cluster. It judges each version once. A good one
// is kept on disk and given to the loop and to the server. A bad one is told, and changes nothing.
// It belongs to one goroutine.
type shared struct {
	config *config.Config
	first  config.Document // of the file
	path   string          // of configFile
	server configurable
	disks  func() []string // the directories of the server whose disk is full
	log    *slog.Logger

	now       inForce
	doc       config.Document // in force
	said      config.Shared   // what it says
	told      map[string]bool // what was told of keys that count for nothing
	loaded    bool            // the server has the parameters
	asked     time.Duration   // when the server was asked last what waits for a restart
	lastFault string          // so that each is told once
}

// begin takes what was in force last, or what the file says. member says whether this is a member
// already: what lies on the disk of one that is not is of another cluster.
func (s *shared) begin(ctx context.Context, member bool) error {
	s.doc, s.told = s.first, map[string]bool{}
	d, err := keptConfig(s.path)
	if err == nil && member {
		s.doc, s.now.known = d, true
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("the last shared configuration is not known", "file", s.path, "err", err)
	}
	if s.said, _, err = s.doc.Read(); err != nil {
		return err
	}
	s.now.settings = s.said.Settings()
	return s.server.Configure(ctx, s.said.Parameters)
}

// keptConfig reads the configuration on the disk.
func keptConfig(path string) (config.Document, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d, err := config.Parse(text)
	if err == nil {
		err = d.Validate()
	}
	return d, err
}

// fault tells what keeps it from its work, once.
func (s *shared) fault(what string, err error) {
	text := ""
	if err != nil {
		text = what + ": " + err.Error()
	}
	if text != "" && text != s.lastFault {
		s.log.Warn(what, "err", err)
	}
	s.lastFault = text
}

// look reads the configuration. create is nil, or what to write where there is none.
func (s *shared) look(ctx context.Context, create *core.Record) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	d, version, err := s.config.Read(ctx)
	switch {
	case err != nil && !errors.Is(err, config.ErrRefused):
		s.fault("the shared configuration was not read", err)
		return
	case version == 0:
		s.now.pause, s.now.read = nil, true
		err = s.create(ctx, create)
		s.fault("the shared configuration was not written", err)
		return
	case version == s.now.version:
		s.fault("", nil)
		return
	}
	var said config.Shared
	var told []string
	if err == nil {
		said, told, err = d.Read()
	}
	if err == nil {
		err = s.server.Try(ctx, said.Parameters)
	}
	if ctx.Err() != nil {
		return // that says nothing of the document
	}
	s.now.version, s.now.refused = version, ""
	if err != nil {
		s.now.refused = strings.TrimPrefix(err.Error(), config.ErrRefused.Error()+": ")
		s.log.Error("the shared configuration is refused: the last one that was good stays in force", "err",
			s.now.refused)
		return
	}
	s.accept(d, said, told)
}

// create writes the configuration where there is none: that of a cluster that was just born, or the
// last one where somebody has removed it. Only a primary does, so that it says what is in force.
func (s *shared) create(ctx context.Context, r *core.Record) error {
	if r == nil {
		return nil
	}
	d := s.doc
	if !s.now.known { // the record may be older than the file
		var err error
		if d, err = d.Assign("durability", string(r.Durability)); err != nil {
			return err
		}
	}
	if _, err := s.config.Write(ctx, d, 0); !errors.Is(err, config.ErrConflict) {
		return err
	}
	return nil // somebody else has: it is read next
}

func (s *shared) accept(d config.Document, said config.Shared, told []string) {
	s.now.pause, s.now.read = nil, true
	if said.Pause {
		s.now.pause = &core.Pause{By: fmt.Sprintf("%s, version %d", byConfig, s.now.version)}
	}
	var news []string
	for _, one := range told {
		if !s.told[one] {
			news = append(news, one)
		}
		s.told[one] = true
	}
	if len(news) > 0 {
		s.log.Info("of the shared configuration this counts for nothing", "keys", strings.Join(news, "; "))
	}
	s.log.Info("the shared configuration", "version", s.now.version, "durability", said.Durability, "acks", said.Acks)
	s.loaded = s.loaded && maps.Equal(s.said.Parameters, said.Parameters)
	s.doc, s.said, s.now.known, s.now.settings = d, said, true, said.Settings()
	if err := durable.Replace(s.path, append(d.JSON(), '\n')); err != nil {
		s.log.Warn("the shared configuration was not kept on disk", "err", err)
	}
}

// byConfig begins the name of who has paused the cluster by the shared configuration.
const byConfig = "the shared configuration"

// load has the server take the parameters, and asks what waits for a restart, and what is
// overridden.
func (s *shared) load(ctx context.Context, restarted bool) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	if !s.loaded {
		if err := s.server.Configure(ctx, s.said.Parameters); err != nil {
			s.fault("the parameters were not loaded", err)
			return
		}
		s.loaded, s.asked = true, 0
		s.now.loads++
	}
	if now := boottime.Now(); restarted || s.asked == 0 || now-s.asked > pendingEvery {
		p, err := s.server.Pending(ctx)
		if err != nil {
			return // it does not run, or takes no SQL: the next look asks again
		}
		s.asked = now
		s.now.pending, s.now.held = strings.Join(p.Restart, ", "), strings.Join(p.Held, ", ")
		s.lookForOverrides(ctx)
	}
}

// lookAtDisks looks whether they are full, also while no server runs: that may be why.
func (s *shared) lookAtDisks() {
	full := s.disks()
	if len(full) > 0 && !slices.Equal(full, s.now.full) {
		s.log.Warn("a disk is full, or nearly so: PostgreSQL fails where it needs more", "directories", full)
	}
	s.now.full = full
}

func (s *shared) lookForOverrides(ctx context.Context) {
	all, err := s.server.Overridden(ctx)
	if err != nil || slices.Equal(all, s.now.overridden) {
		return
	}
	if s.now.overridden = all; len(all) > 0 {
		s.log.Warn("somebody has set past primacy what it sets on this server", "settings", told(all))
	}
}

// follow reads the shared configuration again and again, and tells the loop what is in force.
func (s *shared) follow(ctx context.Context, a *Agent) {
	var last any
	for ; ctx.Err() == nil; pause(ctx, a.cfg.LoopWait) {
		leads := make(chan *core.Record, 1)
		a.send(ctx, func() {
			r := a.seen.Record
			if p, _ := a.member.Phase(); p != core.PhaseLeading || r == nil || r.Primary.Name != a.cfg.Name {
				r = nil
			}
			leads <- r
		})
		select {
		case r := <-leads:
			s.look(ctx, r)
		case <-ctx.Done():
			return
		}
		if p, ok := a.server.Running(); ok {
			if last != any(p) {
				s.now.pending, s.now.overridden = "", nil // that was of another process
			}
			s.load(ctx, last != any(p))
			last = p
		}
		s.lookAtDisks()
		now := s.now
		a.send(ctx, func() { a.common = now })
	}
}

// decided puts what the shared configuration says into an observation.
func (f inForce) decided(o core.Observation) core.Observation {
	o.Settings, o.Server.Full = f.settings, len(f.full) > 0
	r := o.Record
	if r != nil && !f.known { // the file's word was for the first record
		o.Settings.Durability = r.Durability
	}
	asked := o.Instructions != nil && o.Instructions.Paused != nil
	byUs := r != nil && r.Paused != nil && strings.HasPrefix(r.Paused.By, byConfig)
	pause := f.pause
	if !f.read && byUs && o.Instructions != nil && !forced(*o.Instructions, *r.Paused) {
		// What stands in the store is bad, or was not read yet: what was good last has paused the
		// cluster, and goes on to do so.
		pause = r.Paused
	}
	if pause != nil && o.Instructions != nil && forced(*o.Instructions, *pause) {
		pause = nil // what ended it stands in a document that may be refused for another reason
	}
	switch {
	case asked:
	case pause != nil:
		var i core.Instructions
		if o.Instructions != nil {
			i = *o.Instructions
		}
		i.Paused = pause
		o.Instructions = &i
	case !f.read:
	case byUs && o.Instructions == nil: // nobody has ever asked otherwise: the pause is over
		o.Instructions = &core.Instructions{}
	}
	return o
}

// forced says whether a person has ended this pause, which is of the shared configuration: its name
// says of which version.
func forced(i core.Instructions, p core.Pause) bool { return i.Forced != nil && i.Forced.By == p.By }

// PendingRestart returns the names of the parameters for which a member needs a restart.
func (s Said) PendingRestart() []string { return words(s.Pending) }

// HeldParameters returns the names of those that stay larger than they were asked for.
func (s Said) HeldParameters() []string { return words(s.Held) }

// FullDisks returns the directories of its server whose file system is full, or nearly so.
func (s Said) FullDisks() []string { return words(s.Full) }

// OverriddenSettings returns the settings that its server has from elsewhere than where primacy
// sets them, each as NAME (FILE:LINE).
func (s Said) OverriddenSettings() []string { return words(s.Overridden) }

// told is the form in which a member says them.
func told(all []server.Override) string {
	var texts []string
	for _, o := range all {
		texts = append(texts, o.String())
	}
	return strings.Join(texts, ", ")
}

func words(text string) []string {
	return slices.DeleteFunc(strings.Split(text, ", "), func(w string) bool { return w == "" })
}

func configPath(dir string) string { return filepath.Join(dir, configFile) }
