package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// nobody waits until nobody is the primary, for the reason that the list gives.
func (p *played) nobody(why string) {
	p.Helper()
	text := ""
	defer func() { p.Log(text) }()
	p.eventually("nobody is the primary: "+why, func() bool {
		j := p.list()
		text = j.Text
		return j.Primary == "" && strings.Contains(text, why)
	})
}

// another waits until another member is the primary.
func (p *played) another(was string) (now string) {
	p.Helper()
	p.eventually("another than "+was+" is the primary", func() bool {
		now = p.list().Primary
		return now != "" && now != was
	})
	p.leads(now)
	return now
}

// TestPatronisScenariosOfLoss plays what ends a primary, and what people choose for that case.
func TestPatronisScenariosOfLoss(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	p := newPlayed(t, 3)
	p.ledBy("pg1")

	p.scenario("priority_failover: check higher failover priority is respected", func() {
		p.tagged("pg2", "priority = 1")
		p.tagged("pg3", "priority = 2")
		p.whole()
		p.down("pg1")
		p.leads("pg3")
		p.starts("pg1")
		p.whole()
	})
	p.scenario("priority_failover: check failover priority 0 prevents leaderships", func() {
		p.tagged("pg1", "nofailover = true")
		p.down("pg2")
		p.synchronous("pg3", "pg1", 1)
		p.down("pg3")
		p.nobody("must not be promoted")
		if code, _ := p.ask("pg1", "GET", "/replica", ""); code != http.StatusOK {
			t.Errorf("the member that must not be promoted: %d", code)
		}
		p.starts("pg3", "pg2")
		p.leads("pg3")
		p.whole()
	})
	p.scenario("priority_failover: check conflicting configuration handling", func() {
		p.request("pg1", "POST", "/failover", `{"candidate": "pg1"}`, http.StatusPreconditionFailed,
			"must not be promoted")
		p.leads("pg3")
		p.tagged("pg1", "")
		p.whole()
		p.request("pg1", "POST", "/failover", `{"candidate": "pg1"}`, http.StatusOK,
			`Successfully failed over to "pg1"`)
		p.leads("pg1")
		p.whole()
	})
	p.scenario("priority_sync: check replica with sync_priority=0 does not become a synchronous replica", func() {
		p.tagged("pg2", "nosync = true")
		p.synchronous("pg1", "pg3", 1)
		p.follows("pg2")
	})
	p.scenario("quorum_commit: nosync node is removed from voters and synchronous_standby_names", func() {
		p.answers("pg2", "/quorum", http.StatusServiceUnavailable)
		p.answers("pg3", "/quorum", http.StatusOK)
		p.answers("pg2", "/async", http.StatusOK)
	})
	strict := func() {
		p.down("pg1")
		p.leads("pg3")
		done := p.hangs("pg3", "strict")
		p.starts("pg1")
		p.acknowledged(done)
		p.synchronous("pg3", "pg1", 1)
	}
	p.scenario("basic_replication: check that synchronous_mode_strict forces primary to keep old "+
		"synchronous_standby_names", strict)
	p.scenario("quorum_commit: check that synchronous_mode_strict forces primary to keep old "+
		"synchronous_standby_names", func() { // with the two changed about
		p.down("pg3")
		p.leads("pg1")
		done := p.hangs("pg1", "strictagain")
		p.starts("pg3")
		p.acknowledged(done)
		p.tagged("pg2", "")
		p.whole()
	})

	p.scenario("recovery: check that timeline is not incremented when primary is started after crash", func() {
		before := p.whole()
		p.killServer(before.Primary)
		now := p.another(before.Primary)
		p.replicates("aftercrash", now, p.without(now)...)
		if j := p.whole(); j.Record.Timeline <= before.Record.Timeline {
			t.Errorf("timeline %d after %d", j.Record.Timeline, before.Record.Timeline)
		}
		p.verb("history").ends(0).says(": its server has ended")
	})
	p.scenario("recovery: check immediate failover when master_start_timeout=0", func() {
		was := p.whole().Primary
		p.patch(was, `{"master_start_timeout": 0}`)
		p.shows(was, "/config", "master_start_timeout", true)
		p.killServer(was)
		p.another(was)
		p.patch(was, `{"master_start_timeout": null}`)
		p.follows(was)
	})
	p.scenario("recovery: check crashed primary demotes after failed attempt to start", func() {
		was := p.whole().Primary
		conf := filepath.Join(p.dir, was, "data", "postgresql.conf")
		text, err := os.ReadFile(conf)
		if err == nil {
			err = os.WriteFile(conf, append(text, "\nno such line\n"...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.killServer(was)
		now := p.another(was)
		p.answers(was, "/health", http.StatusServiceUnavailable)
		if err := os.WriteFile(conf, text, 0o600); err != nil {
			t.Fatal(err)
		}
		p.follows(was)
		p.replicates("mended", now, was)
	})
	p.scenario("frozen_patroni: watchdog is triggered if patroni primary stops responding", func() {
		was := p.whole().Primary
		server := p.postmaster(was)
		p.members[was].Stop()
		p.eventually("the server of a frozen agent is gone", func() bool {
			_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(server)))
			return err != nil
		})
		p.another(was)
		p.members[was].Cont()
		p.follows(was)
		p.whole()
	})

	p.scenario("dcs_failsafe_mode: check three-node cluster is functioning while DCS is down", func() {
		was := p.whole()
		p.etcd.Kill()
		p.eventually("the primary is a standby", func() bool {
			got, err := p.try(was.Primary, "SELECT pg_is_in_recovery()")
			return err == nil && got == "t"
		})
		for name := range p.members {
			p.answers(name, "/primary", http.StatusServiceUnavailable)
			p.answers(name, "/replica", http.StatusOK) // it may be read
		}
		p.etcd.Restart()
		p.eventually("there is a primary again", func() bool { return p.list().Primary != "" })
		p.whole()
	})
	p.scenario("dcs_failsafe_mode: check known replica is promoted when leader is down and DCS is up", func() {
		was := p.whole().Primary
		p.etcd.Kill()
		p.members[was].Kill()
		p.etcd.Restart()
		p.another(was)
		p.starts(was)
		p.whole()
	})
	p.scenario("dcs_failsafe_mode: check new replica isn't promoted when leader is down and DCS is up", func() {
		all := p.without()
		for _, name := range all {
			p.down(name)
		}
		added := p.joins()
		p.shows(added.name, "/patroni", `"state":"creating replica"`, true) // and there is nobody to copy
		p.nobody("nobody waits")
		if code, _ := p.ask(added.name, "GET", "/primary", ""); code != http.StatusServiceUnavailable {
			t.Errorf("a new member answers to /primary with %d", code)
		}
		p.starts(all...)
		p.eventually("there is a primary again", func() bool { return p.list().Primary != "" })
	})
	p.scenario("dcs_failsafe_mode: scale to three-node cluster", func() { // to four
		now := p.whole().Primary
		p.replicates("scaled", now, p.without(now)...)
	})

	p.scenario("ignored_slots: check ignored slots aren't removed on failover/switchover", func() {
		p.pgCluster.config("set", "parameters.wal_level=logical").ends(0)
		p.verb("restart", "--pending").ends(0)
		was := p.whole().Primary
		p.query(was, "SELECT slot_name::text FROM pg_create_logical_replication_slot('unmanaged', 'test_decoding')")
		p.query(was, "SELECT slot_name::text FROM pg_create_physical_replication_slot('backup', true)")
		slots := "SELECT count(*) FROM pg_replication_slots WHERE slot_name IN ('unmanaged', 'backup')"
		p.verb("switchover").ends(0)
		p.whole()
		p.follows(was)
		if got := p.query(was, slots); got != "2" {
			t.Errorf("after a switchover %s of 2 slots are left", got)
		}
		p.verb("switchover", "--to", was).ends(0)
		p.whole()
		if got := p.query(was, slots); got != "2" {
			t.Errorf("after a second switchover %s of 2 slots are left", got)
		}
		p.query(was, "SELECT pg_drop_replication_slot('unmanaged')::text")
	})
	kept := ""
	slots := func(member string, of ...string) {
		for _, name := range of {
			p.eventually(member+" has a slot of "+name, func() bool {
				got, err := p.try(member, "SELECT slot_type FROM pg_replication_slots WHERE slot_name = '"+name+"'")
				return err == nil && got == "physical"
			})
		}
	}
	p.scenario("permanent_slots: check permanent physical slots that match with member names", func() {
		for name := range p.members {
			slots(name, p.without(name)...)
		}
	})
	p.scenario("permanent_slots: check that permanent slots and member slots are written to the /status key", func() {
		for _, name := range p.without(p.whole().Primary) {
			p.eventually("the slot of "+name+" is in the key", func() bool {
				return strings.Contains(p.key("status"), `"`+name+`":`)
			})
		}
	})
	p.scenario("permanent_slots: check permanent physical replication slot after failover", func() {
		was := p.whole().Primary
		p.members[was].Kill()
		now := p.another(was)
		slots(now, p.without(now)...)
		p.starts(was)
		p.follows(was)
		kept = was
	})
	p.scenario("permanent_slots: check permanent physical replication slot on replica after failover", func() {
		slots(kept, p.without(kept)...)
		if n := p.query(kept, "SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL"); n != "0" {
			t.Errorf("%s slots of a standby keep rows", n)
		}
	})
}
