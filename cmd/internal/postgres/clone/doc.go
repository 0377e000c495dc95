// Package clone makes the data directory of a PostgreSQL server: by initdb, as a copy of a primary
// (pg_basebackup), or from what a former primary has left (pg_rewind). It decides nothing: the
// decisions are in package core. It starts no server.
//
// # The folder beside the data directory
//
// pg_basebackup and pg_rewind replace what is inside a data directory, and it may be a mount point,
// which cannot be renamed. So what must outlive that lies beside it, by default in DATA.primacy:
//
//	lock             held by the process that works on the directory, and by the programs it runs
//	unfinished.json  the marker: the directory is being made
//	filesystem.json  on which file system the directory was when it was last whole
//	lost/            WAL that a rewind has discarded, and a list of its commits
//
// Where the data directory lies on a disk that may be missing, let Config.Folder lie on another: a
// folder on that same disk cannot tell that the disk is not mounted.
//
// # What is deleted, and what never is
//
// The marker is on disk before the first byte of the directory changes, and goes after the last one
// is on disk. A directory under the marker is no database: the next initdb or clone empties it.
// That is the only thing that is ever deleted, and only if it is still the directory for which the
// marker was written, holds no other database, no server works in it, and all of it is in the
// directory itself. Everything else is refused, and left as it is.
//
// # Which file does what
//
//	config.go     Config, Open, the lock
//	look.go       what a directory holds; the marker
//	program.go    runs a program of PostgreSQL
//	initdb.go     a new database system
//	source.go     what is asked of the primary that is copied
//	basebackup.go a copy of it
//	rewind.go     pg_rewind
//	salvage.go    what a rewind discards; the list of losses
package clone
