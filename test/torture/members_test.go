//go:build linux

package torture

import (
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/primacy-go/primacy/internal/onethread"
)

const (
	diskFull  = "disk full on etcd's leader"
	cutPaused = "etcd leader cut off and paused, holder's member"
)

var errMissed = errors.New("nobody to inject it into")

// memberFaults are done to etcd, one at a time, and aimed: mostly at the member that the line's
// leader talks to.
func memberFaults() []fault {
	return []fault{
		{cutPaused, true, cutAndPaused},
		{cutPaused, true, cutAndPaused}, // twice as often as the others
		{"etcd leader frozen", false, leaderFrozen},
		{"holder's member frozen", false, holdersMemberFrozen},
		{"etcd member killed, restarted", false, memberRestarted},
		{"rolling restart of etcd", false, rollingRestart},
		{"etcd leader moved", false, leaderMoved},
		{"quorum lost", false, quorumLost},
		{"one-way partition of etcd's leader", true, oneWay},
		{"etcd leader cut off", true, leaderCutOff},
		{"clients cut off from a member", true, clientsCutOff},
		{diskFull, false, fillDisk},
	}
}

// aimLeader makes the holder's member etcd's leader. It returns the holder and its member.
func (s *torture) aimLeader(l *line) (*candidate, int, error) {
	for range 5 { // somebody else may lead by then, or the holder may have gone to another member
		holder, _ := s.await(l, 2*l.ttl)
		if holder == nil {
			break
		}
		i := holder.member()
		if err := s.cluster.Move(s.cluster.Members[i], 5*time.Second); err != nil {
			return nil, 0, err
		}
		if now, _ := l.leader(); now == holder && now.member() == i {
			return holder, i, nil
		}
	}
	return nil, 0, errMissed
}

// recovered waits until the cluster serves again, all members of it. One that has ended by itself
// is started again.
func (s *torture) recovered() error {
	if s.cluster == nil {
		return nil // whatever takes a server away brings it back
	}
	var errs []error
	for _, m := range s.cluster.Members {
		if m.Exited() {
			onethread.Do(func() { errs = append(errs, m.Launch()) })
		}
		errs = append(errs, m.Ready(time.Minute))
	}
	return errors.Join(errs...)
}

// cutAndPaused is the fault in which etcd acknowledges renewals that do not count: its leader is
// paused and cut off from its peers, and wakes while the majority already counts the lease down
// anew. In every other one the holder has no way to another member.
func cutAndPaused(s *torture, l *line, rng *rand.Rand) (string, error) {
	var holder *candidate
	var i int
	for aimed := false; !aimed; {
		var err error
		if holder, i, err = s.aimLeader(l); err != nil {
			return "", err
		}
		s.pause(between(rng, 100*time.Millisecond, l.ttl/3)) // some renewals at the new leader
		now, _ := l.leader()
		aimed = now == holder && now.member() == i || s.over()
	}
	pause, alone, after := between(rng, l.ttl*55/100, l.ttl*85/100), rng.IntN(2) == 0, between(rng, l.ttl*2/3, l.ttl)
	m := s.cluster.Members[i]
	m.Stop()
	s.network.Cut(i)
	if alone {
		for k, link := range holder.links {
			if k != i {
				link.Hold()
			}
		}
	}
	time.Sleep(pause)
	m.Cont()
	time.Sleep(after)
	s.network.Heal()
	for _, link := range holder.links {
		link.Heal()
	}
	return "", s.recovered()
}

func leaderFrozen(s *torture, l *line, rng *rand.Rand) (string, error) {
	_, i, err := s.aimLeader(l)
	if err != nil {
		return "", err
	}
	return "", s.freezeMembers(between(rng, time.Second, 2*l.ttl), i)
}

func holdersMemberFrozen(s *torture, l *line, rng *rand.Rand) (string, error) {
	holder, _ := l.leader()
	if holder == nil {
		return "", errMissed
	}
	return "", s.freezeMembers(between(rng, time.Second, 2*l.ttl), holder.member())
}

func quorumLost(s *torture, l *line, rng *rand.Rand) (string, error) {
	i := rng.IntN(3)
	return "", s.freezeMembers(between(rng, time.Second, 3*l.ttl), i, (i+1+rng.IntN(2))%3)
}

func (s *torture) freezeMembers(d time.Duration, members ...int) error {
	for _, i := range members {
		if s.cluster.Members[i].Exited() {
			return errors.Join(errMissed, s.recovered())
		}
		s.cluster.Members[i].Stop()
	}
	time.Sleep(d)
	for _, i := range members {
		s.cluster.Members[i].Cont()
	}
	return s.recovered()
}

// restart kills a member and starts it again later.
func (s *torture) restart(i int, down time.Duration) error {
	m := s.cluster.Members[i]
	m.Kill()
	time.Sleep(down)
	var err error
	onethread.Do(func() { err = m.Launch() })
	return errors.Join(err, s.recovered())
}

func memberRestarted(s *torture, l *line, rng *rand.Rand) (string, error) {
	i := rng.IntN(3)
	if rng.IntN(3) > 0 { // two of three times etcd's leader and the holder's member
		var err error
		if _, i, err = s.aimLeader(l); err != nil {
			return "", err
		}
	}
	return "", s.restart(i, between(rng, 0, 2*time.Second))
}

func rollingRestart(s *torture, _ *line, rng *rand.Rand) (string, error) {
	for i := range s.cluster.Members {
		if err := s.restart(i, between(rng, 0, 300*time.Millisecond)); err != nil {
			return "", err
		}
	}
	return "", nil
}

func leaderMoved(s *torture, _ *line, rng *rand.Rand) (string, error) {
	for range 1 + rng.IntN(3) {
		leader := s.cluster.Leader()
		if leader == nil {
			return "", errMissed
		}
		to := s.cluster.Members[rng.IntN(3)]
		for to == leader {
			to = s.cluster.Members[rng.IntN(3)]
		}
		if err := s.cluster.Move(to, 5*time.Second); err != nil {
			return "", err
		}
		s.pause(between(rng, 0, 500*time.Millisecond))
	}
	return "", nil
}

// oneWay lets etcd's leader send and not hear, or hear and not send, to one peer or to both.
func oneWay(s *torture, l *line, rng *rand.Rand) (string, error) {
	_, i, err := s.aimLeader(l)
	if err != nil {
		return "", err
	}
	peers := [][]int{{(i + 1) % 3}, {(i + 2) % 3}, {(i + 1) % 3, (i + 2) % 3}}[rng.IntN(3)]
	deaf := rng.IntN(2) == 0
	for _, p := range peers {
		from, to := i, p
		if deaf {
			from, to = p, i
		}
		err = errors.Join(err, s.network.CutOneWay(from, to))
	}
	time.Sleep(between(rng, time.Second, 2*l.ttl))
	s.network.Heal()
	return "", errors.Join(err, s.recovered())
}

func leaderCutOff(s *torture, l *line, rng *rand.Rand) (string, error) {
	_, i, err := s.aimLeader(l)
	if err != nil {
		return "", err
	}
	s.network.Cut(i)
	time.Sleep(between(rng, time.Second, 2*l.ttl))
	s.network.Heal()
	return "", s.recovered()
}

func clientsCutOff(s *torture, l *line, rng *rand.Rand) (string, error) {
	holder, _ := l.leader()
	if holder == nil {
		return "", errMissed
	}
	err := s.network.CutClients(holder.member())
	time.Sleep(between(rng, time.Second, 2*l.ttl))
	s.network.Heal()
	return "", errors.Join(err, s.recovered())
}

const fillKey = "torture/fill"

// fillDisk makes the member with the small disk etcd's leader, fills the disk, and writes until the
// member gives up.
func fillDisk(s *torture, _ *line, _ *rand.Rand) (string, error) {
	m := s.cluster.Members[smallDiskMember]
	if err := s.cluster.Move(m, 5*time.Second); err != nil {
		return "", err
	}
	if err := s.small.full(); err != nil {
		return "", err
	}
	key := base64.StdEncoding.EncodeToString([]byte(fillKey))
	value := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 400<<10)))
	end := time.Now().Add(8 * time.Second)
	for time.Now().Before(end) && !m.Exited() {
		_ = m.Post("/v3/kv/put", map[string]string{"key": key, "value": value}, nil)
	}
	exited := m.Exited()
	if err := s.small.heal(); err != nil {
		return "", err
	}
	if err := s.restart(smallDiskMember, 0); err != nil {
		return "", err
	}
	if !exited {
		return "", errors.New("etcd did not mind a full disk")
	}
	return "", s.tidy(key)
}

// tidy has etcd use the space again that filling took.
func (s *torture) tidy(key string) error {
	var gone struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	m := s.cluster.Members[1]
	if err := m.Post("/v3/kv/deleterange", map[string]string{"key": key}, &gone); err != nil {
		return nil // an election inside etcd: the next time will do
	}
	_ = m.Post("/v3/kv/compaction", map[string]string{"revision": gone.Header.Revision}, nil)
	return nil
}
