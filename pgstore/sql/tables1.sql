-- Everything that Primacy keeps. The tables are logged: crash recovery and a promoted standby would
-- find unlogged ones empty.
CREATE TABLE {S}.meta (version int NOT NULL);
INSERT INTO {S}.meta VALUES (0);

-- One counter for tokens and revisions, so all of them only grow. Revision 1 is that of a name
-- never used.
CREATE SEQUENCE {S}.counter AS bigint MINVALUE 2;

-- A lease has ended when its row is gone, and not before.
CREATE TABLE {S}.leases (
	id       text COLLATE "C" PRIMARY KEY,
	owner    text NOT NULL,
	ttl      interval NOT NULL,
	expires  timestamptz NOT NULL,  -- on the clock of the server that wrote it
	timeline text NOT NULL,         -- which server that was: another one's clock may be set differently
	channel  text NOT NULL          -- where its process listens
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- A claim of a lease without a row counts for nothing.
CREATE TABLE {S}.claims (
	token  bigint PRIMARY KEY,
	name   text COLLATE "C" NOT NULL,
	lease  text COLLATE "C" NOT NULL,
	seat   text COLLATE "C" NOT NULL,
	slots  int NOT NULL,
	id     text COLLATE "C" NOT NULL,
	held   boolean NOT NULL,
	wanted boolean NOT NULL DEFAULT false, -- notify its lease when somebody waits behind it
	asked  boolean NOT NULL DEFAULT false, -- there are requests for it
	value  bytea NOT NULL,
	UNIQUE (lease, name, seat)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX claims_line ON {S}.claims (name, token);

-- Claim IDs that must not enter any more, while their lease lives.
CREATE TABLE {S}.spent (
	lease text COLLATE "C" NOT NULL,
	id    text COLLATE "C" NOT NULL,
	PRIMARY KEY (lease, id)
);

CREATE TABLE {S}.lines (
	name     text COLLATE "C" PRIMARY KEY,
	revision bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE {S}.requests (
	seq   bigint PRIMARY KEY,
	lease text COLLATE "C" NOT NULL,
	token bigint NOT NULL,
	body  bytea NOT NULL
);
CREATE INDEX requests_lease ON {S}.requests (lease, seq);

CREATE TABLE {S}.records (
	journal bytea NOT NULL,
	key     text COLLATE "C" NOT NULL,
	value   bytea NOT NULL,
	at      timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (journal, key)
);
