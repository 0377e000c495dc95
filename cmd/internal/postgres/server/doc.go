// Package server does what is to be done to one PostgreSQL server: it starts the server as a
// standby, makes it stop listening to a primary and proves that, says where its WAL ends, has it
// follow or promotes it, and sets for whom its commits wait. It decides none of that: the decisions
// are in package core. It knows nothing of elections.
//
// Nothing here is believed because a call returned. A signal is sent, and a reload is asked for, at
// once; the server acts on them when it gets a processor, and a process of it that is frozen acts
// never. So each function waits for evidence that the server has acted, and says why there is none
// yet when its context ends.
//
// # Settings
//
//	command line           what protects the data or must match: port, wal_level, restore_command
//	postgresql.auto.conf   primary_conninfo, primary_slot_name, synchronous_standby_names
//	primacy.conf           the user's parameters; postgresql.conf includes it
//
// A standby that somebody starts or promotes by hand acknowledges no commit, and follows nobody: so
// says postgresql.auto.conf, the strongest file, from before each start. A former primary that
// somebody starts by hand is a primary with the settings that it had: nothing is written when it
// ends.
//
// # Which file does what
//
//	config.go       Config, and what is checked before anything is touched
//	settings.go     the three places above
//	parameters.go   the user's parameters, while the server runs
//	process.go      the processes of the server, from /proc
//	postmaster.go   start and stop
//	runner.go       what the postmaster runs under
//	session.go      the superuser's connections
//	standby.go      seal, follow, where the WAL ends
//	primary.go      promotion, checkpoint, a flush of WAL as a probe
//	sync.go         for whom commits wait, and the proof that each walsender knows
//	slots.go        replication slots
//	wal.go          files of WAL of newer timelines, which would hide what the server has
//	control.go      pg_controldata, pg_waldump
package server
