CREATE OR REPLACE FUNCTION {S}.grant_lease(a_id text, a_owner text, a_ttl bigint, a_channel text) RETURNS void LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	INSERT INTO {S}.leases VALUES (a_id, a_owner, a_ttl * interval '1 microsecond', clock_timestamp() + a_ttl * interval '1 microsecond', {S}.timeline(), a_channel)
		ON CONFLICT DO NOTHING;
END {Q};

-- Renews a lease. It also returns how many claims the lease has, the sum of their tokens, and its
-- last request.
CREATE OR REPLACE FUNCTION {S}.renew(a_lease text, OUT o_lives boolean, OUT o_claims bigint, OUT o_sum text, OUT o_asked bigint) LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	UPDATE {S}.leases SET expires = clock_timestamp() + ttl, timeline = {S}.timeline()
		WHERE id = a_lease AND (expires > clock_timestamp() OR timeline <> {S}.timeline());
	o_lives := FOUND;
	IF NOT o_lives THEN
		PERFORM {S}.unsure({S}.lives(a_lease));
	END IF;
	SELECT count(*), coalesce(sum(token), 0)::text INTO o_claims, o_sum FROM {S}.claims WHERE lease = a_lease;
	SELECT coalesce(max(seq), 0) INTO o_asked FROM {S}.requests WHERE lease = a_lease;
END {Q};

-- Gives one place up: 'ok', or 'none' if it does not stand. The caller holds the lock of the line.
-- It fails (PR002) while a transaction that was fenced with the claim is under way: a wait here
-- would hold up everybody else in the line.
CREATE OR REPLACE FUNCTION {S}.drop_place(a_lease text, a_name text, a_seat text, a_id text, a_token bigint, a_spend boolean, a_journal bytea, a_key text, a_value bytea)
RETURNS text LANGUAGE plpgsql AS {Q}
DECLARE
	c record;
BEGIN
	SELECT token, asked INTO c FROM {S}.claims
		WHERE lease = a_lease AND name = a_name AND seat = a_seat AND id = a_id AND a_token IN (0, token) FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		SELECT token, a_token IN (0, token) AS meant INTO c FROM {S}.claims WHERE lease = a_lease AND name = a_name AND seat = a_seat AND id = a_id;
		IF c.meant THEN
			RAISE EXCEPTION 'a fenced transaction is under way' USING ERRCODE = 'PR002';
		END IF;
		IF c.token IS NULL AND a_spend AND EXISTS (SELECT FROM {S}.leases WHERE id = a_lease) THEN
			PERFORM {S}.spend(a_lease, a_id);
		END IF;
		RETURN 'none';
	END IF;
	DELETE FROM {S}.claims WHERE token = c.token;
	IF c.asked THEN
		DELETE FROM {S}.requests WHERE lease = a_lease AND token = c.token;
	END IF;
	IF a_spend THEN
		PERFORM {S}.spend(a_lease, a_id);
	END IF;
	IF a_journal <> '' THEN
		BEGIN
			PERFORM {S}.keep(a_journal, a_key, a_value);
		EXCEPTION WHEN OTHERS THEN
			NULL; -- the place is given up even if its record cannot be kept
		END;
	END IF;
	RETURN 'ok';
END {Q};

CREATE OR REPLACE FUNCTION {S}.keep(a_journal bytea, a_key text, a_value bytea) RETURNS void LANGUAGE sql AS {Q}
	INSERT INTO {S}.records (journal, key, value) VALUES (a_journal, a_key, a_value)
		ON CONFLICT (journal, key) DO UPDATE SET value = excluded.value, at = excluded.at
{Q};

CREATE OR REPLACE FUNCTION {S}.release(a_lease text, a_names text[], a_seats text[], a_ids text[], a_tokens bigint[], a_spend boolean[],
	a_journals bytea[], a_keys text[], a_values bytea[]) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	n text;
	gone text[] := '{}';
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(a_names);
	FOR i IN 1 .. cardinality(a_names) LOOP
		IF {S}.drop_place(a_lease, a_names[i], a_seats[i], a_ids[i], a_tokens[i], a_spend[i], a_journals[i], a_keys[i], a_values[i]) = 'ok' THEN
			gone := gone || a_names[i];
		END IF;
	END LOOP;
	FOREACH n IN ARRAY gone LOOP
		IF NOT {S}.step(n) THEN
			PERFORM {S}.bump(n);
		END IF;
	END LOOP;
END {Q};

-- Says whether a new claim with so many slots would hold. The caller holds the lock of the line and
-- has called step.
CREATE OR REPLACE FUNCTION {S}.free(a_name text, a_slots int) RETURNS boolean LANGUAGE plpgsql AS {Q}
BEGIN
	IF a_slots = 0 THEN
		RETURN NOT EXISTS (SELECT FROM {S}.claims WHERE name = a_name);
	END IF;
	RETURN NOT EXISTS (SELECT FROM {S}.claims WHERE name = a_name AND slots = 0)
		AND (a_slots < 0 OR (SELECT count(*) FROM {S}.claims WHERE name = a_name) < a_slots);
END {Q};

-- Returns a number of slots other than this one that shared claims of the line have, or 0.
CREATE OR REPLACE FUNCTION {S}.misfit(a_name text, a_slots int) RETURNS int LANGUAGE plpgsql AS {Q}
DECLARE
	other int := 0;
BEGIN
	IF a_slots <> 0 THEN
		SELECT slots INTO other FROM {S}.claims WHERE name = a_name AND slots <> 0 AND slots <> a_slots LIMIT 1;
	END IF;
	RETURN coalesce(other, 0);
END {Q};

-- Removes the claims that the lease has on the seats, all of them or only those under another ID,
-- and says whether there were any.
CREATE OR REPLACE FUNCTION {S}.displace(a_lease text, a_name text, a_seat text, a_but text) RETURNS boolean LANGUAGE plpgsql AS {Q}
DECLARE
	c text;
BEGIN
	SELECT id INTO c FROM {S}.claims WHERE lease = a_lease AND name = a_name AND seat = a_seat AND id <> a_but;
	RETURN FOUND AND {S}.drop_place(a_lease, a_name, a_seat, c, 0, true, '', '', '') = 'ok';
END {Q};

-- Puts a claim at the end of its line. The token is drawn while the line is ours, so tokens grow
-- along the line.
CREATE OR REPLACE FUNCTION {S}.enter(a_lease text, a_name text, a_seat text, a_slots int, a_id text, a_value bytea) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	t bigint;
	h boolean := {S}.free(a_name, a_slots);
	c record;
BEGIN
	t := nextval('{S}.counter');
	INSERT INTO {S}.claims (token, name, lease, seat, slots, id, held, value) VALUES (t, a_name, a_lease, a_seat, a_slots, a_id, h, a_value);
	INSERT INTO {S}.lines AS l VALUES (a_name, t) ON CONFLICT (name) DO UPDATE SET revision = excluded.revision;
	IF NOT h THEN
		FOR c IN UPDATE {S}.claims SET wanted = false WHERE name = a_name AND wanted AND held AND lease <> a_lease RETURNING token, lease LOOP
			PERFORM {S}.tell(c.lease, 'w ' || c.token);
		END LOOP;
	END IF;
END {Q};

-- Enters claims, all or none. Codes: 'ok', one row for each claim in their order; 'gone' lease;
-- 'spent' ID; 'misfit', with the other number of slots; 'taken'. With a_drop a place on another
-- seat is given up in the same step.
CREATE OR REPLACE FUNCTION {S}.take(a_lease text, a_names text[], a_seats text[], a_slots int[], a_ids text[], a_values bytea[], a_tries boolean[],
	a_drop boolean, d_seat text, d_id text, d_token bigint, d_spend boolean, d_journal bytea, d_key text, d_value bytea)
RETURNS TABLE (code text, slots int, token bigint, held boolean, remains bigint) LANGUAGE plpgsql AS {Q}
#variable_conflict use_column
DECLARE
	n text;
	other int;
	mine record;
	dirty text[] := '{}';
	failed boolean := false;
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(a_names);
	-- Held until the commit against whoever would end the lease, and not against its renewal.
	PERFORM FROM {S}.leases l WHERE l.id = a_lease AND (l.expires > clock_timestamp() OR l.timeline <> {S}.timeline()) FOR KEY SHARE;
	IF NOT FOUND THEN
		PERFORM {S}.unsure({S}.lives(a_lease));
		RETURN QUERY SELECT 'gone', 0, 0::bigint, false, 0::bigint;
		RETURN;
	END IF;
	IF EXISTS (SELECT FROM {S}.spent p WHERE p.lease = a_lease AND p.id = ANY (a_ids)) THEN
		RETURN QUERY SELECT 'spent', 0, 0::bigint, false, 0::bigint;
		RETURN;
	END IF;
	FOR i IN 1 .. cardinality(a_names) LOOP
		PERFORM {S}.step(a_names[i]);
		other := {S}.misfit(a_names[i], a_slots[i]);
		IF other <> 0 AND {S}.purge(a_names[i]) THEN -- it may have been of the dead
			other := {S}.misfit(a_names[i], a_slots[i]);
		END IF;
		IF other <> 0 THEN
			RETURN QUERY SELECT 'misfit', other, i::bigint, false, 0::bigint;
			RETURN;
		END IF;
	END LOOP;
	IF a_drop AND {S}.drop_place(a_lease, a_names[1], d_seat, d_id, d_token, d_spend, d_journal, d_key, d_value) = 'ok' THEN
		dirty := dirty || a_names[1];
	END IF;
	FOR i IN 1 .. cardinality(a_names) LOOP
		IF {S}.displace(a_lease, a_names[i], a_seats[i], a_ids[i]) THEN
			dirty := dirty || a_names[i];
		END IF;
	END LOOP;
	FOREACH n IN ARRAY dirty LOOP
		IF NOT {S}.step(n) THEN
			PERFORM {S}.bump(n);
		END IF;
	END LOOP;
	FOR i IN 1 .. cardinality(a_names) LOOP
		IF a_tries[i] THEN
			SELECT c.held INTO mine FROM {S}.claims c WHERE c.lease = a_lease AND c.name = a_names[i] AND c.seat = a_seats[i];
			failed := failed OR NOT coalesce(mine.held, {S}.free(a_names[i], a_slots[i]));
		END IF;
	END LOOP;
	IF NOT failed THEN
		FOR i IN 1 .. cardinality(a_names) LOOP
			SELECT c.token, c.held INTO mine FROM {S}.claims c WHERE c.lease = a_lease AND c.name = a_names[i] AND c.seat = a_seats[i];
			IF NOT FOUND THEN
				PERFORM {S}.enter(a_lease, a_names[i], a_seats[i], a_slots[i], a_ids[i], a_values[i]);
				SELECT c.token, c.held INTO mine FROM {S}.claims c WHERE c.lease = a_lease AND c.name = a_names[i] AND c.seat = a_seats[i];
			END IF;
			failed := failed OR (a_tries[i] AND NOT mine.held);
		END LOOP;
	END IF;
	IF failed THEN -- and who tried believes that it has no claim on any of them
		FOR i IN 1 .. cardinality(a_names) LOOP
			IF {S}.displace(a_lease, a_names[i], a_seats[i], '') AND NOT {S}.step(a_names[i]) THEN
				PERFORM {S}.bump(a_names[i]);
			END IF;
		END LOOP;
		RETURN QUERY SELECT 'taken', 0, 0::bigint, false, 0::bigint;
		RETURN;
	END IF;
	RETURN QUERY SELECT 'ok', c.slots, c.token, c.held, CASE WHEN c.held THEN 0 ELSE {S}.remains(c.name, c.token) END
		FROM unnest(a_names, a_seats) WITH ORDINALITY AS u (name, seat, i)
		JOIN {S}.claims c ON c.lease = a_lease AND c.name = u.name AND c.seat = u.seat ORDER BY u.i;
END {Q};

CREATE OR REPLACE FUNCTION {S}.replace_value(a_lease text, a_name text, a_seat text, a_id text, a_token bigint, a_value bytea) RETURNS boolean LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(ARRAY[a_name]);
	UPDATE {S}.claims SET value = a_value
		WHERE lease = a_lease AND name = a_name AND seat = a_seat AND id = a_id AND a_token IN (0, token) AND {S}.lives(a_lease);
	IF FOUND THEN
		PERFORM {S}.bump(a_name);
	END IF;
	RETURN FOUND;
END {Q};

-- Ends a lease with all its claims. A claim that a fenced transaction holds is removed after the
-- transaction has ended. The names are locked before the lease's row, as take does it: the other
-- way round the two would wait for each other. A take that was under way meanwhile may have entered
-- a claim on another name: then all of it is undone, and done again with that name's lock. Without
-- it a claim that enters the same line just then would wait, and nobody would tell it that it holds.
-- Who holds all lines, as where there are many names and from the third time on, has all of them.
CREATE OR REPLACE FUNCTION {S}.end_lease(a_lease text, a_told boolean) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	n text;
	c record;
	names text[];
	tries int := 0;
	whole boolean;
BEGIN
	PERFORM {S}.verb();
	LOOP
		names := ARRAY(SELECT DISTINCT name FROM {S}.claims WHERE lease = a_lease);
		tries := tries + 1;
		whole := tries > 2 OR cardinality(names) > 200;
		BEGIN
			IF whole THEN
				PERFORM pg_advisory_xact_lock({SALT});
			ELSE
				PERFORM {S}.lock(names);
			END IF;
			IF a_told THEN
				PERFORM {S}.tell(a_lease, 'e ' || a_lease);
			END IF;
			DELETE FROM {S}.leases WHERE id = a_lease; -- waits for a take under way; no other can begin
			EXIT WHEN whole OR NOT EXISTS (SELECT FROM {S}.claims WHERE lease = a_lease AND name <> ALL (names));
			RAISE EXCEPTION 'a claim has entered' USING ERRCODE = 'PR004';
		EXCEPTION WHEN SQLSTATE 'PR004' THEN
			NULL; -- the locks are given back
		END;
	END LOOP;
	FOR n IN WITH gone AS (DELETE FROM {S}.claims WHERE token IN (SELECT token FROM {S}.claims WHERE lease = a_lease FOR UPDATE SKIP LOCKED) RETURNING name)
		SELECT DISTINCT name FROM gone ORDER BY 1 LOOP
		IF NOT {S}.step(n) THEN
			PERFORM {S}.bump(n);
		END IF;
	END LOOP;
	FOR n IN SELECT DISTINCT name FROM {S}.claims WHERE lease = a_lease LOOP -- claims of fenced transactions: the next in line looks again
		SELECT token, lease INTO c FROM {S}.claims WHERE name = n AND NOT held ORDER BY token LIMIT 1;
		PERFORM {S}.tell(c.lease, 'l ' || c.token);
	END LOOP;
	DELETE FROM {S}.spent WHERE lease = a_lease;
	DELETE FROM {S}.requests WHERE lease = a_lease;
END {Q};
