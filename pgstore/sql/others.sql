-- Removes the dead claims right before one that waits, and brings the front of the line up to date.
-- The caller holds the lock of the line.
CREATE OR REPLACE FUNCTION {S}.clean(a_name text, a_token bigint) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	c record;
	changed boolean := false;
BEGIN
	LOOP
		SELECT token, lease INTO c FROM {S}.claims WHERE name = a_name AND token < a_token ORDER BY token DESC LIMIT 1;
		EXIT WHEN NOT FOUND OR EXISTS (SELECT FROM {S}.leases WHERE id = c.lease AND {S}.ahead(expires, ttl));
		EXIT WHEN NOT {S}.bury(c.token, c.lease);
		changed := true;
	END LOOP;
	IF NOT {S}.step(a_name) AND changed THEN
		PERFORM {S}.bump(a_name);
	END IF;
END {Q};

-- Says whether somebody waits behind the claim. If nobody does, the claim's process is notified
-- once somebody does.
CREATE OR REPLACE FUNCTION {S}.wanted(a_name text, a_token bigint, a_lease text) RETURNS boolean LANGUAGE plpgsql AS {Q}
DECLARE
	yes boolean := EXISTS (SELECT FROM {S}.claims WHERE name = a_name AND token > a_token AND NOT held AND lease <> a_lease);
BEGIN
	UPDATE {S}.claims SET wanted = NOT yes WHERE token = a_token AND wanted = yes;
	RETURN yes;
END {Q};

-- Returns what became of a lease and of some of its claims. Kinds: 'end' of the lease; 'request';
-- without tokens 'claims', with their number and the sum of their tokens; for each token 'gone',
-- 'held', 'wanted', or 'wait' with the time until its state can change. It waits for no lock: what
-- it cannot find out now has to be asked again.
CREATE OR REPLACE FUNCTION {S}.look(a_lease text, a_tokens bigint[], a_wants boolean[], a_after bigint)
RETURNS TABLE (kind text, token bigint, remains bigint, seq bigint, body bytea) LANGUAGE plpgsql AS {Q}
#variable_conflict use_column
DECLARE
	c record;
	locked int := 0;
BEGIN
	PERFORM {S}.verb();
	body := ''; seq := 0; remains := 0; token := 0;
	IF {S}.over(a_lease) THEN
		kind := 'end';
		RETURN NEXT;
		RETURN;
	END IF;
	RETURN QUERY SELECT 'request', r.token, 0::bigint, r.seq, r.body FROM {S}.requests r WHERE r.lease = a_lease AND r.seq > a_after ORDER BY r.seq;
	IF cardinality(a_tokens) = 0 THEN
		kind := 'claims';
		SELECT count(*), coalesce(sum(t.token), 0) INTO token, remains FROM {S}.claims t WHERE t.lease = a_lease;
		RETURN NEXT;
	END IF;
	FOR i IN 1 .. cardinality(a_tokens) LOOP
		token := a_tokens[i];
		remains := 0;
		SELECT t.name, t.held INTO c FROM {S}.claims t WHERE t.token = a_tokens[i] AND t.lease = a_lease;
		IF FOUND AND NOT c.held THEN
			remains := {S}.remains(c.name, token);
			IF remains = 0 AND locked < 100 AND {S}.try_lock(c.name) THEN
				locked := locked + 1;
				PERFORM {S}.clean(c.name, token);
				SELECT t.name, t.held INTO c FROM {S}.claims t WHERE t.token = a_tokens[i] AND t.lease = a_lease;
				remains := {S}.remains(c.name, token);
			END IF;
		END IF;
		kind := CASE WHEN c.name IS NULL THEN 'gone' WHEN c.held THEN 'held' ELSE 'wait' END;
		IF kind = 'held' AND a_wants[i] THEN
			remains := -1; -- not known
			IF locked < 100 AND {S}.try_lock(c.name) THEN
				locked := locked + 1;
				remains := 0;
				IF {S}.wanted(c.name, token, a_lease) THEN
					kind := 'wanted';
				END IF;
			END IF;
		END IF;
		RETURN NEXT;
	END LOOP;
END {Q};

-- Returns a line as observers see it, after removing the dead. An empty line is one row with its
-- revision.
CREATE OR REPLACE FUNCTION {S}.line(a_name text)
RETURNS TABLE (name text, revision bigint, token bigint, slots int, held boolean, value bytea, lease text, owner text) LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.tidy(ARRAY[a_name]);
	RETURN QUERY SELECT a_name, coalesce(l.revision, 1), c.token, c.slots, c.held, c.value, c.lease, coalesce(o.owner, '')
		FROM (SELECT 1) one LEFT JOIN {S}.lines l ON l.name = a_name LEFT JOIN {S}.claims c ON c.name = a_name LEFT JOIN {S}.leases o ON o.id = c.lease
		ORDER BY c.token;
END {Q};

-- Removes the dead from these lines, except those that somebody has locked.
CREATE OR REPLACE FUNCTION {S}.tidy(a_names text[]) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	n text;
BEGIN
	FOR n IN SELECT DISTINCT c.name FROM {S}.claims c LEFT JOIN {S}.leases l ON l.id = c.lease
		WHERE c.name = ANY (a_names) AND (l.id IS NULL OR NOT {S}.ahead(l.expires, l.ttl)) LIMIT 100 LOOP
		IF {S}.try_lock(n) THEN
			PERFORM {S}.purge(n);
		END IF;
	END LOOP;
END {Q};

-- Removes the dead from all lines whose names begin with the prefix.
CREATE OR REPLACE FUNCTION {S}.tidy_lines(a_prefix text) RETURNS void LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.tidy(ARRAY(SELECT DISTINCT c.name FROM {S}.claims c LEFT JOIN {S}.leases l ON l.id = c.lease
		WHERE starts_with(c.name, a_prefix) AND (l.id IS NULL OR NOT {S}.ahead(l.expires, l.ttl))));
END {Q};

-- Returns all lines whose names begin with the prefix and in which somebody stands. It locks none
-- of them: the client may read the answer slowly.
CREATE OR REPLACE FUNCTION {S}.all_lines(a_prefix text)
RETURNS TABLE (name text, revision bigint, token bigint, slots int, held boolean, value bytea, lease text, owner text) LANGUAGE plpgsql AS {Q}
#variable_conflict use_column
BEGIN
	PERFORM {S}.verb();
	RETURN QUERY SELECT c.name, l.revision, c.token, c.slots, c.held, c.value, c.lease, coalesce(o.owner, '')
		FROM {S}.claims c JOIN {S}.lines l ON l.name = c.name LEFT JOIN {S}.leases o ON o.id = c.lease
		WHERE starts_with(c.name, a_prefix) ORDER BY c.name, c.token;
END {Q};

-- Returns those of these lines that are no longer at these revisions.
CREATE OR REPLACE FUNCTION {S}.moved(a_names text[], a_revisions bigint[]) RETURNS SETOF text LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.tidy(a_names);
	RETURN QUERY SELECT u.name FROM unnest(a_names, a_revisions) AS u (name, revision) LEFT JOIN {S}.lines l ON l.name = u.name
		WHERE coalesce(l.revision, 1) <> u.revision;
END {Q};

-- Keeps a request for the holder and notifies it: 'ok', 'gone', 'shared'.
CREATE OR REPLACE FUNCTION {S}.ask(a_name text, a_token bigint, a_body bytea) RETURNS text LANGUAGE plpgsql AS {Q}
DECLARE
	c record;
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(ARRAY[a_name]);
	PERFORM {S}.step(a_name);
	SELECT token, lease, slots INTO c FROM {S}.claims WHERE name = a_name ORDER BY token LIMIT 1;
	IF NOT FOUND OR c.token <> a_token THEN
		RETURN 'gone';
	ELSIF c.slots <> 0 THEN
		RETURN 'shared';
	END IF;
	INSERT INTO {S}.requests VALUES (nextval('{S}.counter'), c.lease, c.token, a_body);
	UPDATE {S}.claims SET asked = true WHERE token = c.token;
	PERFORM {S}.tell(c.lease, 'n ' || c.lease);
	RETURN 'ok';
END {Q};

-- Removes a claim and notifies its owner. The caller holds the lock of the line.
CREATE OR REPLACE FUNCTION {S}.depose(a_token bigint, a_lease text, a_id text) RETURNS void LANGUAGE plpgsql AS {Q}
BEGIN
	DELETE FROM {S}.claims WHERE token = a_token;
	DELETE FROM {S}.requests WHERE lease = a_lease AND token = a_token;
	PERFORM {S}.spend(a_lease, a_id);
	PERFORM {S}.tell(a_lease, {S}.word('g') || a_token);
END {Q};

-- Hands a name over to a claim that waits: 'ok', 'gone', 'refused', 'own', 'noheir'.
CREATE OR REPLACE FUNCTION {S}.transfer(a_lease text, a_name text, a_seat text, a_id text, a_token bigint, a_heir bigint, a_spend boolean,
	a_journal bytea, a_key text, a_value bytea) RETURNS text LANGUAGE plpgsql AS {Q}
DECLARE
	p record;
	h record;
	c record;
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(ARRAY[a_name]);
	PERFORM {S}.step(a_name);
	SELECT t.token, t.slots, t.held INTO p FROM {S}.claims t
		WHERE t.lease = a_lease AND t.name = a_name AND t.seat = a_seat AND t.id = a_id AND a_token IN (0, t.token) AND {S}.lives(a_lease);
	IF NOT FOUND THEN
		RETURN 'gone';
	ELSIF p.slots <> 0 OR NOT p.held THEN
		RETURN 'refused';
	END IF;
	SELECT token, lease INTO h FROM {S}.claims WHERE name = a_name AND token = a_heir AND token > p.token AND slots = 0;
	IF NOT FOUND THEN
		RETURN 'noheir';
	ELSIF h.lease = a_lease THEN
		RETURN 'own';
	ELSIF NOT EXISTS (SELECT FROM {S}.leases WHERE id = h.lease AND expires > clock_timestamp()) THEN
		RETURN 'noheir';
	END IF;
	PERFORM {S}.drop_place(a_lease, a_name, a_seat, a_id, p.token, a_spend, a_journal, a_key, a_value);
	FOR c IN SELECT token, lease, id FROM {S}.claims WHERE name = a_name AND token < a_heir ORDER BY token LOOP
		PERFORM {S}.depose(c.token, c.lease, c.id);
	END LOOP;
	IF NOT {S}.step(a_name) THEN
		PERFORM {S}.bump(a_name);
	END IF;
	RETURN 'ok';
END {Q};

-- Removes the claim with that token, as an operator does.
CREATE OR REPLACE FUNCTION {S}.remove_claim(a_name text, a_token bigint) RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	c record;
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(ARRAY[a_name]);
	SELECT token, lease, id INTO c FROM {S}.claims WHERE token = a_token AND name = a_name FOR UPDATE SKIP LOCKED;
	IF FOUND THEN
		PERFORM {S}.depose(c.token, c.lease, c.id);
		IF NOT {S}.step(a_name) THEN
			PERFORM {S}.bump(a_name);
		END IF;
	ELSIF EXISTS (SELECT FROM {S}.claims WHERE token = a_token AND name = a_name) THEN
		RAISE EXCEPTION 'a fenced transaction is under way' USING ERRCODE = 'PR002';
	END IF;
END {Q};

-- For a row deleted by hand: notifies its owner, and lets the next in line hold.
CREATE OR REPLACE FUNCTION {S}.by_hand() RETURNS trigger LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	PERFORM {S}.lock(ARRAY[OLD.name]);
	IF EXISTS (SELECT FROM {S}.leases WHERE id = OLD.lease) THEN
		PERFORM {S}.spend(OLD.lease, OLD.id);
		PERFORM {S}.tell(OLD.lease, {S}.word('g') || OLD.token);
	END IF;
	IF NOT {S}.step(OLD.name) THEN
		PERFORM {S}.bump(OLD.name);
	END IF;
	PERFORM set_config('primacy.own', '', true);
	RETURN NULL;
END {Q};
DROP TRIGGER IF EXISTS by_hand ON {S}.claims;
CREATE TRIGGER by_hand AFTER DELETE ON {S}.claims FOR EACH ROW
	WHEN (current_setting('primacy.own', true) IS DISTINCT FROM '1') EXECUTE FUNCTION {S}.by_hand();

-- Adds a record unless there is one with its key, whose value it then returns. It keeps a_keep
-- records of the journal.
CREATE OR REPLACE FUNCTION {S}.append(a_journal bytea, a_key text, a_value bytea, a_keep bigint, OUT o_added boolean, OUT o_there bytea) LANGUAGE plpgsql AS {Q}
BEGIN
	PERFORM {S}.verb();
	INSERT INTO {S}.records (journal, key, value) VALUES (a_journal, a_key, a_value) ON CONFLICT DO NOTHING;
	o_added := FOUND;
	o_there := a_value;
	IF NOT o_added THEN
		SELECT value INTO o_there FROM {S}.records WHERE journal = a_journal AND key = a_key;
		RETURN;
	END IF;
	DELETE FROM {S}.records WHERE journal = a_journal
		AND key <= (SELECT r.key FROM {S}.records r WHERE r.journal = a_journal ORDER BY r.key DESC OFFSET a_keep LIMIT 1);
END {Q};

-- Removes what nobody looks at any more: leases that have ended with what belonged to them, and
-- records older than 400 days.
CREATE OR REPLACE FUNCTION {S}.sweep() RETURNS void LANGUAGE plpgsql AS {Q}
DECLARE
	n text;
BEGIN
	PERFORM {S}.verb();
	FOR n IN SELECT id FROM {S}.leases WHERE expires <= clock_timestamp() - interval '10 seconds' OR expires > clock_timestamp() + ttl LIMIT 1000 LOOP
		PERFORM {S}.over(n);
	END LOOP;
	PERFORM {S}.tidy(ARRAY(SELECT DISTINCT c.name FROM {S}.claims c LEFT JOIN {S}.leases l ON l.id = c.lease WHERE l.id IS NULL));
	DELETE FROM {S}.spent s WHERE NOT EXISTS (SELECT FROM {S}.leases l WHERE l.id = s.lease);
	DELETE FROM {S}.requests r WHERE NOT EXISTS (SELECT FROM {S}.leases l WHERE l.id = r.lease);
	DELETE FROM {S}.records WHERE at < clock_timestamp() - interval '400 days';
END {Q};
