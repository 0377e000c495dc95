//go:build linux

package pgtorture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// wipeStore takes all that the store knows. All members must stop and wait for a person, who finds
// out why, and gets back what was there.
func wipeStore(r *round) (string, error) {
	o, ok := r.keeper.(*ours)
	if !ok {
		return "", errMissed
	}
	ids := r.systems()
	if err := r.forget(); err != nil {
		return "", err
	}
	over := boottime.Now() + r.ttl
	time.Sleep(r.ttl + r.between(time.Second, 3*time.Second))
	var wrong []string
	said := 0
	for _, m := range r.machines { // somebody tries whether it helps
		if strings.Contains(m.tail(200), wipedText) {
			said++
		}
		wrong = append(wrong, text(m.terminate(20*time.Second))...)
		wrong = append(wrong, text(m.on())...)
	}
	for _, m := range r.machines {
		wrong = append(wrong, text(m.says(wipedText, 20*time.Second))...)
	}
	time.Sleep(r.between(0, 2*time.Second))
	list, err := o.cli(r.cluster, 10*time.Second, "postgres", "list", "--cluster", scope)
	if err == nil {
		wrong = append(wrong, "the store was wiped, and list finds a primary:\n"+list)
	}
	wrong = append(wrong, judgeWiped(r.acks.since(r.first), over, ids, r.systems())...)
	for _, m := range r.machines { // as the documents tell a person
		wrong = append(wrong, text(m.terminate(20*time.Second))...)
	}
	detail := fmt.Sprintf("%d members said so before they were started again", said)
	return detail, errors.Join(r.remember(), told(wrong))
}

// wipedText is what a member says that remembers a cluster of which the store knows nothing.
const wipedText = "the store was wiped or restored"

// says returns nil once the agent, since its start, has said so.
func (m *machine) says(text string, limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_ = m.start()
		if strings.Contains(m.tail(200), text) {
			return nil
		}
	}
	return fmt.Errorf("the agent of %s does not say within %v: %s", m.name, limit, text)
}

// wipeStoreEmptyFirst starts all machines anew, the store with nothing in it, and first a machine
// with nothing on its disk: it cannot know that there has ever been a cluster. It must not get the
// data of the others.
func wipeStoreEmptyFirst(r *round) (string, error) {
	var err error
	for _, m := range r.machines {
		err = errors.Join(err, m.off())
	}
	empty := r.standby()
	err = errors.Join(err, emptied(empty))
	ids := r.systems()
	if err = errors.Join(err, r.forget()); err != nil {
		return "", err
	}
	wiped := boottime.Now()
	if err := empty.on(); err != nil {
		return "", err
	}
	time.Sleep(r.between(0, 8*time.Second))
	born := r.systems()[empty.name] != 0
	for _, m := range r.without(empty) {
		err = errors.Join(err, m.on())
	}
	time.Sleep(r.ttl + r.between(time.Second, 3*time.Second))
	has := r.systems()
	delete(has, empty.name) // its own, which it has made
	wrong := judgeWiped(r.acks.since(r.first), wiped, ids, has)
	for _, m := range r.machines { // a person finds the right store
		wrong = append(wrong, text(m.off())...)
	}
	err = errors.Join(err, emptied(empty), r.remember())
	return fmt.Sprintf("%s first, with a database of its own before the others came: %v", empty.name, born),
		errors.Join(err, told(wrong))
}

func text(err error) []string {
	if err == nil {
		return nil
	}
	return []string{err.Error()}
}

func told(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}

// judgeWiped returns what is wrong with what members did that remember a cluster of which the store
// knows nothing: a row was acknowledged that was sent after the last term was over, or a data
// directory is not what it was.
func judgeWiped(all []ack, over time.Duration, before, after map[string]uint64) (wrong []string) {
	for _, a := range all {
		if a.call > over {
			wrong = append(wrong, fmt.Sprintf("the store was wiped, and %s acknowledged row %d, sent %v after the "+
				"last term was over", a.node, a.id, a.call-over))
			break
		}
	}
	for name, id := range before {
		if id != 0 && after[name] != id {
			wrong = append(wrong, fmt.Sprintf("the store was wiped, and the database of %s was system %d, and is %d",
				name, id, after[name]))
		}
	}
	return wrong
}

// systems returns the system identifier of each machine's database, 0 where there is none.
func (c *cluster) systems() map[string]uint64 {
	ids := map[string]uint64{}
	for _, m := range c.machines {
		b, err := os.ReadFile(filepath.Join(m.data(), "global", "pg_control"))
		if err == nil && len(b) >= 8 {
			ids[m.name] = binary.LittleEndian.Uint64(b)
		}
	}
	return ids
}

// emptied removes what a machine's agent has made.
func emptied(m *machine) error {
	paths, err := filepath.Glob(m.data() + "*")
	for _, path := range paths {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// forget ends all members of etcd and starts them with nothing. What they knew is kept.
func (c *cluster) forget() error {
	return c.restore(func(dir string) error { return os.Rename(dir, dir+".kept") })
}

// remember puts back what forget has kept.
func (c *cluster) remember() error {
	return c.restore(func(dir string) error {
		return errors.Join(os.RemoveAll(dir), os.Rename(dir+".kept", dir))
	})
}

func (c *cluster) restore(move func(dir string) error) error {
	var err error
	for i, s := range c.etcd.Members {
		s.Kill()
		err = errors.Join(err, move(c.etcdData[i]))
	}
	for i, m := range c.machines {
		err = errors.Join(err, c.etcd.Members[i].Launch())
		if err == nil {
			err = m.join(m.etcd.PID())
		}
	}
	for _, s := range c.etcd.Members {
		if err == nil {
			err = s.Ready(20 * time.Second)
		}
	}
	return err
}
