-- Every verb begins with this. It fails where the answer could be wrong.
CREATE OR REPLACE FUNCTION {S}.verb() RETURNS void LANGUAGE plpgsql AS {Q}
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'this server is a standby' USING ERRCODE = '25006';
	END IF;
	-- A snapshot taken before the lock on a name would show an old state of the line.
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'transactions of this role are % and must be read committed', current_setting('transaction_isolation') USING ERRCODE = 'PR001';
	END IF;
	-- After a crash that loses an acknowledged write a token can be given out twice. The setting
	-- lasts until this statement has committed.
	IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	PERFORM set_config('primacy.own', '1', true); -- the trigger by_hand is for rows that others delete
	IF current_setting('bytea_output') <> 'hex' THEN
		PERFORM set_config('bytea_output', 'hex', true); -- the other form cannot be read by the client
	END IF;
	IF {S}.replicated() THEN
		-- A commit that did not wait for the standby sends a warning. A role that receives no
		-- warnings would take it for a success.
		IF current_setting('client_min_messages') NOT LIKE 'debug%' THEN
			PERFORM set_config('client_min_messages', 'warning', true);
		END IF;
		-- A call can read what is on this server's disk only: a write whose wait for the standby
		-- was given up is visible to all. This write makes the answer wait until the standby has
		-- it, with everything before it.
		PERFORM pg_logical_emit_message(true, 'primacy', ''::text);
	END IF;
END {Q};

-- Says whether a write lasts only when another server has it too.
CREATE OR REPLACE FUNCTION {S}.replicated() RETURNS boolean LANGUAGE sql STABLE AS {Q}
	SELECT coalesce(current_setting('synchronous_standby_names', true), '') <> ''
{Q};

-- Tells servers apart that were one another's standbys: their clocks may differ.
CREATE OR REPLACE FUNCTION {S}.timeline() RETURNS text LANGUAGE plpgsql AS {Q}
BEGIN
	RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN OTHERS THEN
	RETURN ''; -- services that hide their log
END {Q};

CREATE OR REPLACE FUNCTION {S}.key(a_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS {Q}
	SELECT hashtextextended(a_name COLLATE "C", {SALT})
{Q};

-- Locks the lines of these names until the transaction ends, always in the same order. For many
-- names it locks all lines: the server has room for a limited number of locks.
CREATE OR REPLACE FUNCTION {S}.lock(a_names text[]) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	k bigint;
BEGIN
	IF cardinality(a_names) > 200 THEN
		PERFORM pg_advisory_xact_lock({SALT});
		RETURN;
	END IF;
	PERFORM pg_advisory_xact_lock_shared({SALT});
	IF cardinality(a_names) = 1 THEN
		PERFORM pg_advisory_xact_lock({S}.key(a_names[1]));
		RETURN;
	END IF;
	FOR k IN SELECT DISTINCT {S}.key(u) FROM unnest(a_names) u ORDER BY 1 LOOP
		PERFORM pg_advisory_xact_lock(k);
	END LOOP;
END {Q};

-- Locks one line if that is possible without waiting.
CREATE OR REPLACE FUNCTION {S}.try_lock(a_name text) RETURNS boolean LANGUAGE plpgsql AS {Q}
BEGIN
	RETURN pg_try_advisory_xact_lock_shared({SALT}) AND pg_try_advisory_xact_lock({S}.key(a_name));
END {Q};

CREATE OR REPLACE FUNCTION {S}.bump(a_name text) RETURNS void LANGUAGE plpgsql AS {Q}
BEGIN
	INSERT INTO {S}.lines AS l VALUES (a_name, nextval('{S}.counter')) ON CONFLICT (name) DO UPDATE SET revision = excluded.revision;
END {Q};

-- Notifies the process of a lease. NOTIFY locks the whole database until the commit is on disk, so
-- renewals never do it, nor claims that nobody waits for.
CREATE OR REPLACE FUNCTION {S}.tell(a_lease text, a_word text) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	ch text;
BEGIN
	SELECT channel INTO ch FROM {S}.leases WHERE id = a_lease;
	IF ch <> '' THEN
		PERFORM pg_notify(ch, a_word);
	END IF;
END {Q};

-- The word of a notification about a claim. A commit that did not wait for the standby notifies all
-- the same. So with a standby the process is only asked to look, and the answer to that waits for
-- the standby.
CREATE OR REPLACE FUNCTION {S}.word(a_word text) RETURNS text LANGUAGE sql STABLE AS {Q}
	SELECT CASE WHEN {S}.replicated() THEN 'l ' ELSE a_word || ' ' END
{Q};

CREATE OR REPLACE FUNCTION {S}.spend(a_lease text, a_id text) RETURNS void LANGUAGE sql AS {Q}
	INSERT INTO {S}.spent VALUES (a_lease, a_id) ON CONFLICT DO NOTHING
{Q};

-- Says whether a lease ends later, on the clock that wrote the end. An end that is more than a ttl
-- away was written by another clock: by the server before a failover, or by this one before it was
-- set back.
CREATE OR REPLACE FUNCTION {S}.ahead(a_expires timestamptz, a_ttl interval) RETURNS boolean LANGUAGE sql VOLATILE AS {Q}
	SELECT a_expires > clock_timestamp() AND a_expires <= clock_timestamp() + a_ttl
{Q};

-- Removes a lease that has run out, and says whether the lease is gone. A lease whose row somebody
-- has locked, a renewal above all, is left to the next look. After a failover the other clock's
-- time means nothing: the lease gets a whole ttl by this clock.
CREATE OR REPLACE FUNCTION {S}.over(a_lease text) RETURNS boolean LANGUAGE plpgsql AS {Q}
DECLARE
	born text;
	far boolean;
BEGIN
	SELECT timeline, expires > clock_timestamp() INTO born, far FROM {S}.leases WHERE id = a_lease AND NOT {S}.ahead(expires, ttl) FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN NOT EXISTS (SELECT FROM {S}.leases WHERE id = a_lease);
	END IF;
	IF far OR born <> {S}.timeline() THEN
		UPDATE {S}.leases SET expires = clock_timestamp() + ttl, timeline = {S}.timeline() WHERE id = a_lease;
		RETURN false;
	END IF;
	DELETE FROM {S}.leases WHERE id = a_lease AND expires <= clock_timestamp();
	RETURN FOUND;
END {Q};

-- Says whether a lease lives. It is dead only if its row is gone. A lease that looks expired may
-- have a renewal under way: then this fails (PR003).
CREATE OR REPLACE FUNCTION {S}.lives(a_lease text) RETURNS boolean LANGUAGE plpgsql AS {Q}
BEGIN
	IF EXISTS (SELECT FROM {S}.leases WHERE id = a_lease AND expires > clock_timestamp()) THEN
		RETURN true;
	ELSIF {S}.over(a_lease) THEN
		RETURN false;
	END IF;
	PERFORM {S}.unsure(NOT EXISTS (SELECT FROM {S}.leases WHERE id = a_lease AND expires > clock_timestamp()));
	RETURN true;
END {Q};

CREATE OR REPLACE FUNCTION {S}.unsure(a_yes boolean) RETURNS void LANGUAGE plpgsql AS {Q}
BEGIN
	IF a_yes THEN
		RAISE EXCEPTION 'somebody works on the lease just now' USING ERRCODE = 'PR003';
	END IF;
END {Q};

-- Removes a claim if its lease is over and no transaction that was fenced with it is under way. The
-- caller holds the lock of the line.
CREATE OR REPLACE FUNCTION {S}.bury(a_token bigint, a_lease text) RETURNS boolean LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM FROM {S}.claims WHERE token = a_token FOR UPDATE SKIP LOCKED;
	IF NOT FOUND OR NOT {S}.over(a_lease) THEN
		RETURN false;
	END IF;
	DELETE FROM {S}.claims WHERE token = a_token;
	DELETE FROM {S}.requests WHERE lease = a_lease AND token = a_token;
	RETURN true;
END {Q};

-- Brings a line up to date from its front: removes dead holders, and lets those hold whose turn it
-- is. It passes over a waiter whose lease has ended. The caller holds the lock of the line.
CREATE OR REPLACE FUNCTION {S}.step(a_name text) RETURNS boolean LANGUAGE plpgsql AS {Q}
DECLARE
	c record;
	l record;
	n int := 0;
	writer boolean := false;
	changed boolean := false;
	granted boolean := false;
BEGIN
	FOR c IN SELECT token, lease, slots, held FROM {S}.claims WHERE name = a_name ORDER BY token LOOP
		IF c.slots = 0 THEN
			EXIT WHEN n > 0;
		ELSE
			EXIT WHEN writer OR (c.slots > 0 AND n >= c.slots);
		END IF;
		SELECT channel, {S}.ahead(expires, ttl) AS lives INTO l FROM {S}.leases WHERE id = c.lease;
		IF l.lives IS NOT TRUE THEN
			IF {S}.bury(c.token, c.lease) THEN
				changed := true;
				CONTINUE;
			END IF; -- it may have got a whole ttl
			SELECT channel, {S}.ahead(expires, ttl) AS lives INTO l FROM {S}.leases WHERE id = c.lease;
		END IF;
		IF l.lives IS NOT TRUE THEN
			EXIT WHEN NOT c.held; -- nobody knows whether it lives: it does not come to hold, and nobody passes it
		ELSIF NOT c.held THEN
			UPDATE {S}.claims SET held = true WHERE token = c.token;
			changed := true;
			granted := true;
			IF l.channel <> '' THEN
				PERFORM pg_notify(l.channel, {S}.word('h') || c.token);
			END IF;
		END IF;
		n := n + 1;
		writer := writer OR c.slots = 0;
	END LOOP;
	IF changed THEN
		PERFORM {S}.bump(a_name);
	END IF;
	IF granted THEN
		PERFORM pg_notify('{CHANNEL}', encode(substr(sha256(convert_to(a_name, 'UTF8')), 1, 12), 'hex'));
	END IF;
	RETURN changed;
END {Q};

-- Removes every claim of a line whose lease is over, wherever it stands. The caller holds the lock
-- of the line.
CREATE OR REPLACE FUNCTION {S}.purge(a_name text) RETURNS boolean LANGUAGE plpgsql AS {Q}
DECLARE
	c record;
	changed boolean := false;
BEGIN
	FOR c IN SELECT t.token, t.lease FROM {S}.claims t LEFT JOIN {S}.leases l ON l.id = t.lease
		WHERE t.name = a_name AND (l.id IS NULL OR NOT {S}.ahead(l.expires, l.ttl)) ORDER BY t.token LOOP
		IF {S}.bury(c.token, c.lease) THEN
			changed := true;
		END IF;
	END LOOP;
	IF changed THEN
		PERFORM {S}.bump(a_name);
	END IF;
	RETURN {S}.step(a_name) OR changed;
END {Q};

-- In how many microseconds the state of a waiting claim can change by itself: when the lease right
-- before it can end or, behind those who hold, any of theirs.
CREATE OR REPLACE FUNCTION {S}.remains(a_name text, a_token bigint) RETURNS bigint LANGUAGE plpgsql AS {Q}
DECLARE
	c record;
	e timestamptz;
BEGIN
	SELECT lease, held INTO c FROM {S}.claims WHERE name = a_name AND token < a_token ORDER BY token DESC LIMIT 1;
	IF NOT FOUND THEN
		RETURN 0;
	ELSIF c.held THEN
		SELECT min(CASE WHEN {S}.ahead(l.expires, l.ttl) THEN l.expires ELSE '-infinity' END) INTO e FROM {S}.claims t LEFT JOIN {S}.leases l ON l.id = t.lease
			WHERE t.name = a_name AND t.token < a_token AND t.held;
	ELSE
		SELECT expires INTO e FROM {S}.leases WHERE id = c.lease AND {S}.ahead(expires, ttl);
	END IF;
	IF e IS NULL OR e <= clock_timestamp() THEN
		RETURN 0;
	END IF;
	RETURN ceil(extract(epoch FROM e - clock_timestamp()) * 1000000);
END {Q};
