-- Sessions that the processes of leases hold open, each with a lock on its key (Config.AdvisoryWake). Not logged, on purpose: after a crash and on another
-- server there are none, and the leases have their ttl.
CREATE UNLOGGED TABLE IF NOT EXISTS {S}.tethers (
	lease text COLLATE "C" NOT NULL,
	key   bigint NOT NULL,
	boot  timestamptz NOT NULL, -- the server's start: what was before it says nothing
	PRIMARY KEY (lease, key)
);

-- Who may use the other tables may use this one: else all that a migration finds would have to be granted anew.
DO {Q} DECLARE
	g record;
BEGIN
	FOR g IN SELECT a.privilege_type, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS who
		FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace, aclexplode(t.relacl) a
		WHERE n.nspname = {NAME} AND t.relname = 'leases' AND a.grantee <> t.relowner LOOP
		EXECUTE format('GRANT %s ON %I.tethers TO %s', g.privilege_type, {NAME}, g.who);
	END LOOP;
END {Q};
