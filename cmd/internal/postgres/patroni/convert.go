package patroni

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/primacy-go/primacy/cmd/internal/postgres/callbacks"
	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgfile"
)

// Converted is what a member's file of Patroni says, as a file of ours.
type Converted struct {
	TOML string
	// Secrets are the files that the text names and that are to hold passwords: by path.
	Secrets map[string]string
	// Notes are what could not be taken over, a line each, sorted.
	Notes []string
}

// Convert makes a file of `primacy postgres` of a file of Patroni. secrets is the directory of the
// files that are to hold the passwords. The error is one line.
func Convert(text []byte, secrets string) (Converted, error) {
	d, err := config.ParseYAML(text)
	if err != nil {
		return Converted{}, err
	}
	c := &converter{secrets: secrets, out: Converted{Secrets: map[string]string{}}}
	c.store(d)
	c.plain("cluster", c.text(d, "scope"))
	c.plain("name", c.text(d, "name"))
	if ns := c.text(d, "namespace"); ns != "" && strings.Trim(ns, "/") != strings.Trim(config.Namespace, "/") {
		c.plain("namespace", ns)
	}
	pg := c.table(d, "postgresql")
	for _, need := range []struct {
		in   map[string]any
		path string
	}{{d, "scope"}, {d, "name"}, {pg, "postgresql.data_dir"}, {pg, "postgresql.connect_address"}} {
		if c.text(need.in, need.path[strings.LastIndex(need.path, ".")+1:]) == "" {
			return c.out, fmt.Errorf("%s is not there: if it comes from the environment, write it into the file",
				need.path)
		}
	}
	c.postgres(pg, c.table(d, "tags"))
	c.api(c.table(d, "restapi"))
	c.callbacks(c.table(pg, "callbacks"))
	c.rest("", d, topNotes)
	slices.Sort(c.out.Notes)
	c.out.TOML = c.b.String()
	if c.err != nil {
		return c.out, c.err
	}
	_, err = pgfile.Parse("the file made of it", c.out.TOML)
	return c.out, err
}

type converter struct {
	b       strings.Builder
	secrets string
	out     Converted
	err     error // the first one
}

func (c *converter) note(format string, args ...any) {
	c.out.Notes = append(c.out.Notes, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

func (c *converter) plain(key, value string) { fmt.Fprintf(&c.b, "%s = %s\n", key, quoted(value)) }

// quoted is a basic string of TOML, which JSON's is too.
func quoted(v string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n")
}

func (c *converter) text(in map[string]any, key string) string {
	switch v := in[key].(type) {
	case nil:
		return ""
	case string:
		return strings.TrimSpace(v)
	default:
		return fmt.Sprint(v)
	}
}

// password returns a password as it stands: blanks are part of it.
func (c *converter) password(in map[string]any, key, path string) string {
	v, ok := in[key].(string)
	if !ok {
		return c.text(in, key)
	}
	if strings.ContainsAny(v, "\r\n") && c.err == nil {
		c.err = fmt.Errorf("%s.%s has a line break, and a file of passwords has one in a line: change it", path, key)
	}
	return v
}

func (c *converter) table(in map[string]any, key string) map[string]any {
	t, _ := in[key].(map[string]any)
	return t
}

func (c *converter) truth(in map[string]any, key string) bool {
	is := strings.ToLower(c.text(in, key))
	return is == "true" || is == "on" || is == "yes" || is == "1"
}

// others are the stores of Patroni that are no etcd.
var others = []string{"consul", "zookeeper", "exhibitor", "kubernetes", "raft"}

func (c *converter) store(d map[string]any) {
	for _, name := range others {
		if d[name] != nil {
			c.note("%s: primacy postgres keeps a cluster in etcd: move Patroni to etcd3 before it can be taken over",
				name)
		}
	}
	if d["etcd"] != nil && d["etcd3"] == nil {
		c.note("etcd: there Patroni keeps its keys by etcd's API of version 2, and primacy looks by version 3: " +
			"move Patroni to etcd3 before it can be taken over")
	}
	at := c.table(d, "etcd3")
	if at == nil {
		at = c.table(d, "etcd")
	}
	query, scheme, who := url.Values{}, "etcd://", ""
	hosts, user, password := c.hosts(at)
	if strings.EqualFold(c.text(at, "protocol"), "https") || strings.HasPrefix(c.text(at, "url"), "https:") {
		scheme = "etcds://"
		for key, name := range map[string]string{"cacert": "ca", "cert": "cert", "key": "key"} {
			if v := c.text(at, key); v != "" {
				query.Set(name, v)
			}
		}
	}
	if user == "" {
		user, password = c.text(at, "username"), c.password(at, "password", "etcd3")
	}
	if user != "" {
		path := c.secrets + "/etcd-password"
		c.out.Secrets[path] = password + "\n"
		query.Set("password-file", path)
		who = url.PathEscape(user) + "@"
	}
	c.rest("etcd3.", at, map[string]string{"host": "", "hosts": "", "url": "", "protocol": "", "cacert": "", "cert": "",
		"key": "", "username": "", "password": ""})
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1:2379"}
		c.note("etcd3.hosts is not there: store names etcd on this machine; change it")
	}
	address := scheme + who + strings.Join(hosts, ",")
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	c.plain("store", address)
}

// hosts returns the addresses of etcd, and who a URL among them says that we are. As with Patroni
// url comes first, and nothing in it is escaped. Nothing of an address that cannot be read is
// shown: it may have a password.
func (c *converter) hosts(at map[string]any) (all []string, user, password string) {
	var said []string
	switch v := at["hosts"].(type) {
	case string:
		said = strings.Split(v, ",")
	case []any:
		for _, x := range v {
			said = append(said, fmt.Sprint(x))
		}
	}
	if v := c.text(at, "host"); v != "" && len(said) == 0 {
		said = []string{v}
	}
	if v := c.text(at, "url"); v != "" {
		said = []string{v}
	}
	for _, h := range said {
		h = strings.Trim(h, " '\"")
		if _, after, ok := strings.Cut(h, "://"); ok {
			h = after
		}
		if i := strings.LastIndex(h, "@"); i >= 0 {
			user, password, _ = strings.Cut(h[:i], ":")
			h = h[i+1:]
		}
		h = strings.TrimSuffix(h, "/")
		if _, _, err := net.SplitHostPort(h); err != nil {
			h = net.JoinHostPort(strings.Trim(h, "[]"), "2379")
		}
		if !address.MatchString(h) {
			c.note("etcd3: an address of etcd cannot be read: give HOST:PORT")
			continue
		}
		all = append(all, h)
	}
	return all, user, password
}

var address = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d+$`)

func (c *converter) postgres(pg, tags map[string]any) {
	parameters, auth := c.table(pg, "parameters"), c.table(pg, "authentication")
	replication := c.table(auth, "replication")
	fmt.Fprintln(&c.b, "[server]")
	c.plain("data", c.text(pg, "data_dir"))
	bin := c.text(pg, "bin_dir")
	if bin == "" {
		bin = "/usr/lib/postgresql/15/bin"
		c.note("postgresql.bin_dir is not there: bin names %s; change it if PostgreSQL's programs are elsewhere", bin)
	}
	c.plain("bin", bin)
	at := c.text(pg, "connect_address")
	c.plain("listen", at)
	if listen := c.text(pg, "listen"); listen != "" && listen != at {
		c.note("postgresql.listen = %s: primacy's server listens at %s alone, and at its socket", listen, at)
	}
	socket, _, _ := strings.Cut(c.text(parameters, "unix_socket_directories"), ",")
	if socket == "" {
		socket = "/var/run/postgresql"
		c.note("postgresql.parameters.unix_socket_directories is not there: socket names %s; change it if "+
			"SHOW unix_socket_directories says another one", socket)
	}
	c.plain("socket", strings.TrimRight(strings.TrimSpace(socket), "/"))
	super := c.table(auth, "superuser")
	if user := c.text(super, "username"); user != "" && user != "postgres" {
		c.plain("superuser", user)
	}
	if c.text(super, "password") != "" {
		c.note("postgresql.authentication.superuser.password: primacy logs in over the socket without one; " +
			"pg_hba.conf " +
			"must let it, for replication too")
	}
	user := cmp.Or(c.text(replication, "username"), "replicator")
	pass := c.secrets + "/pgpass"
	c.out.Secrets[pass] = "*:*:*:" + passWord(user) + ":" +
		passWord(c.password(replication, "password", "postgresql.authentication.replication")) + "\n"
	fmt.Fprintf(&c.b, "replication = {user = %s, passfile = %s}\n", quoted(user), quoted(pass))
	if auth["rewind"] != nil {
		c.note("postgresql.authentication.rewind: primacy rewinds as %s, and gives it the rights when it adopts", user)
	}
	for _, name := range []string{"superuser", "replication"} {
		c.rest("postgresql.authentication."+name+".", c.table(auth, name), map[string]string{"username": "",
			"password": ""})
	}
	c.tags(tags)
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		if name != "unix_socket_directories" && parameters[name] != nil {
			c.note("postgresql.parameters.%s: it is of this member alone, and stays in its postgresql.conf; for all: "+
				"primacy "+
				"postgres config set parameters.%[1]s=%s", name, shellWord(parameterWord(parameters[name])))
		}
	}
	c.rest("postgresql.", pg, postgresNotes)
}

// passWord writes a field of a passfile.
func passWord(v string) string { return strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(v) }

// parameterWord writes a parameter so that [config.ParseParameter] reads that value.
func parameterWord(v any) string {
	text, ok := v.(string)
	if !ok {
		return fmt.Sprint(v)
	}
	read, err := config.ParseParameter([]byte(text))
	_, truth := read.(bool) // on is what PostgreSQL takes true for
	same := err == nil && (truth || read != nil && fmt.Sprint(read) == text)
	if same && !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	return quoted(text)
}

func shellWord(v string) string {
	if strings.ContainsAny(v, " \t'\"$\\&|;<>()*?#~`{}[]!") {
		return "'" + strings.ReplaceAll(v, "'", `'\''`) + "'"
	}
	return v
}

func (c *converter) tags(tags map[string]any) {
	var all []string
	if p := c.text(tags, "failover_priority"); p != "" && p != "1" {
		if p == "0" {
			all = append(all, "nofailover = true")
		} else {
			all = append(all, "priority = "+p)
		}
	}
	for _, name := range []string{"nosync", "nofailover"} {
		if c.truth(tags, name) && !slices.Contains(all, name+" = true") {
			all = append(all, name+" = true")
		}
	}
	if len(all) > 0 {
		fmt.Fprintf(&c.b, "tags = {%s}\n", strings.Join(all, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		known := slices.Contains([]string{"failover_priority", "nosync", "nofailover"}, name)
		if value := strings.ToLower(c.text(tags, name)); !known && value != "false" && value != "" {
			c.note("tags.%s: primacy has no such tag", name)
		}
	}
}

func (c *converter) api(api map[string]any) {
	listen := c.text(api, "listen")
	if listen == "" {
		return
	}
	fmt.Fprintln(&c.b, "[api]")
	c.plain("listen", strings.Replace(listen, "*:", "0.0.0.0:", 1))
	if at := c.text(api, "connect_address"); at != "" {
		c.plain("advertise", at)
	}
	auth := c.table(api, "authentication")
	login := c.password(api, "auth", "restapi")
	if user := c.text(auth, "username"); user != "" {
		login = user + ":" + c.password(auth, "password", "restapi.authentication")
	}
	if login != "" {
		path := c.secrets + "/api-auth"
		c.out.Secrets[path] = login + "\n"
		c.plain("auth_file", path)
	}
	cert := c.text(api, "certfile")
	if cert != "" {
		c.plain("tls_cert", cert)
		c.plain("tls_key", cmp.Or(c.text(api, "keyfile"), cert))
	}
	if ca, verify := c.text(api, "cafile"), c.text(api, "verify_client"); ca != "" && cert != "" &&
		(verify == "required" || verify == "optional") {
		c.plain("client_ca", ca)
		if verify == "required" {
			c.note("restapi.verify_client = required: with primacy a certificate is needed to write, and not to read")
		}
	}
	c.rest("restapi.", api, map[string]string{"listen": "", "connect_address": "", "authentication": "", "auth": "",
		"certfile": "", "keyfile": "", "cafile": "", "verify_client": ""})
}

// callbacks takes over the commands. Patroni splits each into words as a shell does.
func (c *converter) callbacks(all map[string]any) {
	commands := map[callbacks.Action][]string{}
	known := map[string]string{}
	for _, action := range callbacks.Actions {
		key := string(action)
		known[key] = ""
		line := c.text(all, key)
		if line == "" {
			continue
		}
		words, err := shellWords(line)
		switch {
		case err != nil:
			c.note("postgresql.callbacks.%s = %s: %v", key, line, err)
		case len(words) == 0 || !callbacks.Placed(words[0]):
			c.note("postgresql.callbacks.%s = %s: give the absolute path of the program, under [callbacks]", key, line)
		default:
			commands[action] = words
		}
	}
	if len(commands) > 0 {
		c.note("postgresql.callbacks: a primary's role is told as primary, as by Patroni 4; if these commands want " +
			`master, as Patroni 3 said, set primary = "master" under [callbacks]`)
		fmt.Fprintln(&c.b, "[callbacks]")
	}
	for _, action := range callbacks.Actions {
		if words := commands[action]; len(words) > 0 {
			for i, w := range words {
				words[i] = quoted(w)
			}
			fmt.Fprintf(&c.b, "%s = [%s]\n", action, strings.Join(words, ", "))
		}
	}
	c.rest("postgresql.callbacks.", all, known)
}

// shellWords splits a line as a shell does that expands nothing.
func shellWords(line string) (words []string, err error) {
	var word strings.Builder
	begun, quote, escaped := false, rune(0), false
	for _, r := range line {
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteRune('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			begun, escaped = true, true
		case r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			begun, quote = true, r
		case quote == 0 && strings.ContainsRune(" \t\r\n", r):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("it ends within quotes, or with a backslash")
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// What could not be taken over, by Patroni's keys. One without a reason was, or need not be.
var (
	topNotes = map[string]string{
		"scope": "", "name": "", "namespace": "", "etcd": "", "etcd3": "", "consul": "", "zookeeper": "",
		"exhibitor":  "",
		"kubernetes": "", "raft": "", "postgresql": "", "restapi": "", "tags": "", "ctl": "",
		"bootstrap": "it counts for nothing once there is a cluster: what holds now is in the store, and stays",
		"watchdog":  "the guardian of each server does that",
		"log":       "primacy writes its log to standard error",
		"citus":     "primacy knows no Citus",
	}
	postgresNotes = map[string]string{
		"data_dir": "", "bin_dir": "", "listen": "", "connect_address": "", "authentication": "", "parameters": "",
		"pgpass": "", "use_unix_socket": "", "use_unix_socket_repl": "", "use_slots": "", "use_pg_rewind": "",
		"config_dir": "", "callbacks": "", "remove_data_directory_on_rewind_failure": "",
		"remove_data_directory_on_diverged_timelines": "", "pg_ctl_timeout": "", "database": "",
		"pg_hba":   "primacy leaves pg_hba.conf as it is: change the file, then reload",
		"pg_ident": "primacy leaves pg_ident.conf as it is: change the file, then reload",
	}
)

// rest notes what of a table is not known.
func (c *converter) rest(prefix string, in map[string]any, known map[string]string) {
	for key := range in {
		why, ok := known[key]
		if !ok {
			why = "primacy has no such setting"
		}
		if why != "" && in[key] != nil {
			c.note("%s%s: %s", prefix, key, why)
		}
	}
}
