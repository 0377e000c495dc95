-- Which leases that are tied to sessions stand right in front of these claims, which wait, and belong to another process. A claim behind those who
-- hold looks at eight of them at most.
CREATE OR REPLACE FUNCTION {S}.fronts(a_tokens bigint[], a_channel text) RETURNS SETOF text LANGUAGE sql VOLATILE AS {Q}
	SELECT DISTINCT f.lease FROM {S}.claims c CROSS JOIN LATERAL (
		SELECT t.lease, t.held, row_number() OVER w AS n, first_value(t.held) OVER w AS behind
		FROM (SELECT b.* FROM {S}.claims b WHERE b.name = c.name AND b.token < c.token ORDER BY b.token DESC LIMIT 8) t WINDOW w AS (ORDER BY t.token DESC)
	) f JOIN {S}.leases l ON l.id = f.lease AND l.channel <> a_channel
	WHERE c.token = ANY (a_tokens) AND NOT c.held AND (f.n = 1 OR f.behind AND f.held)
		AND EXISTS (SELECT FROM {S}.tethers t WHERE t.lease = f.lease AND t.boot = pg_postmaster_start_time())
{Q};

-- Ties leases to a session, which holds the lock on the key, and returns those that stand. From the session with the other key they are loosened. The row
-- of a lease is locked against who would end it: whoever does has to look at the ties under that lock.
CREATE OR REPLACE FUNCTION {S}.tie(a_leases text[], a_key bigint, a_before bigint) RETURNS SETOF text LANGUAGE plpgsql AS {Q}
DECLARE
	n text;
BEGIN
	PERFORM set_config('synchronous_commit', 'off', true); -- ties do not outlive this server
	FOR n IN SELECT id FROM {S}.leases WHERE id = ANY (a_leases) ORDER BY id FOR KEY SHARE LOOP
		INSERT INTO {S}.tethers VALUES (n, a_key, pg_postmaster_start_time()) ON CONFLICT DO NOTHING;
		RETURN NEXT n;
	END LOOP;
	DELETE FROM {S}.tethers WHERE lease = ANY (a_leases) AND key = a_before;
END {Q};

-- Says whether a lease was tied to sessions and all of these have ended. What was tied before the server's start says nothing.
CREATE OR REPLACE FUNCTION {S}.untied(a_lease text) RETURNS boolean LANGUAGE sql VOLATILE AS {Q}
	SELECT count(*) > 0 AND bool_and(pg_try_advisory_xact_lock_shared(key)) FROM {S}.tethers WHERE lease = a_lease AND boot = pg_postmaster_start_time()
{Q};

-- Waits for sessions of the leases in front of these claims to end: at most so many milliseconds if it is one lease, not at all if there are several. The first
-- row has their number, the others the leases whose sessions have all ended, and when they expire.
CREATE OR REPLACE FUNCTION {S}.vigil(a_tokens bigint[], a_channel text, a_limit int) RETURNS TABLE (lease text, expires bigint) LANGUAGE plpgsql AS {Q}
#variable_conflict use_column
DECLARE
	fronts text[] := ARRAY(SELECT {S}.fronts(a_tokens, a_channel));
	k bigint;
BEGIN
	RETURN QUERY SELECT '', cardinality(fronts)::bigint;
	IF cardinality(fronts) = 1 THEN
		BEGIN
			PERFORM set_config('lock_timeout', a_limit::text, true);
			FOR k IN SELECT t.key FROM {S}.tethers t WHERE t.lease = fronts[1] AND t.boot = pg_postmaster_start_time() LOOP
				PERFORM pg_advisory_xact_lock_shared(k);
			END LOOP;
		EXCEPTION WHEN lock_not_available THEN
			RETURN;
		END;
	END IF;
	RETURN QUERY SELECT l.id, (extract(epoch FROM l.expires) * 1000000)::bigint FROM {S}.leases l WHERE l.id = ANY (fronts) AND {S}.untied(l.id);
END {Q};

-- Ends a lease whose sessions have all ended, unless it was renewed since it expired at that time, or somebody works on it.
CREATE OR REPLACE FUNCTION {S}.wake(a_lease text, a_expires bigint) RETURNS boolean LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(ARRAY(SELECT DISTINCT name FROM {S}.claims WHERE lease = a_lease));
	PERFORM FROM {S}.leases WHERE id = a_lease AND (extract(epoch FROM expires) * 1000000)::bigint = a_expires FOR UPDATE SKIP LOCKED;
	IF NOT FOUND OR NOT {S}.untied(a_lease) THEN
		RETURN false;
	END IF;
	PERFORM {S}.end_lease(a_lease, true);
	DELETE FROM {S}.tethers WHERE lease = a_lease;
	RETURN true;
END {Q};
