// Package pgfile reads the file of `primacy postgres -f`. What it does not know is an error: a
// misspelt key would be a setting that is silently not there.
package pgfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/near"
	"github.com/primacy-go/primacy/cmd/internal/postgres/callbacks"
	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/cmd/internal/tomlfile"
)

// File is what a file says of one member.
type File struct {
	Store    string
	Cluster  string
	Name     string
	TTL      time.Duration
	LoopWait time.Duration

	API API

	Callbacks Callbacks

	Data, Bin, Listen, SocketDir, Superuser string
	ReplicationUser, Passfile               string
	HBA                                     []string // lines of a new cluster's pg_hba.conf
	Priority                                int
	NoSync, NoFailover                      bool

	// Namespace is the directory of the store in which Patroni and its tools keep clusters.
	Namespace string
	First     config.Shared // what a new cluster begins with; its parameters are those of the file alone
}

// API is where and how a member answers Patroni's REST. Without Listen it does not.
type API struct {
	Listen    string // HOST:PORT
	Advertise string // HOST:PORT by which others reach it; empty: Listen
	TokenFile string // a bearer token
	AuthFile  string // USER:PASSWORD
	Cert, Key string // PEM
	ClientCA  string // PEM: whose certificates may write
}

// Callbacks are commands, each with its arguments, by the action that they are called for.
type Callbacks struct {
	Commands map[callbacks.Action][]string
	Primary  string // what the role of a primary is called: "primary", or "master" as in Patroni 3
}

// URL is how others reach the API; empty: there is none.
func (a API) URL() string {
	at, scheme := cmp.Or(a.Advertise, a.Listen), "http"
	if at == "" {
		return ""
	}
	if a.Cert != "" {
		scheme = "https"
	}
	return scheme + "://" + at + "/patroni"
}

// limit bounds a file.
const limit = 1 << 20

// Load reads a file. An error is one line: FILE:LINE, the key, and what to do.
func Load(path string) (*File, error) {
	text, err := tomlfile.Read(path, limit)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// Parse is [Load] of a text; path is what errors call it.
func Parse(path, text string) (*File, error) {
	f := &File{TTL: 3 * time.Second, LoopWait: time.Second, Superuser: "postgres", Namespace: config.Namespace,
		First: config.Defaults(), Callbacks: Callbacks{map[callbacks.Action][]string{}, "primary"}}
	f.First.Parameters = map[string]string{}
	_, top, err := tomlfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	if err := take("", top, f.keys()); err != nil {
		return nil, err
	}
	return f, f.check(path)
}

// setter takes in one key's value.
type setter func(v tomlfile.Value) error

func (f *File) keys() map[string]setter {
	return map[string]setter{
		"store":     text(&f.Store),
		"cluster":   text(&f.Cluster),
		"name":      text(&f.Name),
		"namespace": text(&f.Namespace),
		"ttl":       duration(&f.TTL),
		"loop_wait": duration(&f.LoopWait),
		"server": table("server", map[string]setter{
			"data":      text(&f.Data),
			"bin":       text(&f.Bin),
			"listen":    text(&f.Listen),
			"socket":    text(&f.SocketDir),
			"superuser": text(&f.Superuser),
			"hba":       decode(&f.HBA, "give a list of lines of pg_hba.conf"),
			"replication": table("server.replication", map[string]setter{
				"user":     text(&f.ReplicationUser),
				"passfile": text(&f.Passfile),
			}),
			"tags": table("server.tags", map[string]setter{
				"priority":   decode(&f.Priority, "give a whole number"),
				"nosync":     decode(&f.NoSync, "give true or false"),
				"nofailover": decode(&f.NoFailover, "give true or false"),
			}),
		}),
		"api": table("api", map[string]setter{
			"listen":     text(&f.API.Listen),
			"advertise":  text(&f.API.Advertise),
			"token_file": text(&f.API.TokenFile),
			"auth_file":  text(&f.API.AuthFile),
			"tls_cert":   text(&f.API.Cert),
			"tls_key":    text(&f.API.Key),
			"client_ca":  text(&f.API.ClientCA),
		}),
		"callbacks": table("callbacks", f.Callbacks.keys()),
		"first": table("first", map[string]setter{
			"durability":              text((*string)(&f.First.Durability)),
			"acks":                    decode(&f.First.Acks, "give a whole number"),
			"drop_after":              duration(&f.First.DropAfter),
			"alone_after":             duration(&f.First.AloneAfter),
			"maximum_lag_on_failover": decode((*uint64)(&f.First.MaxLag), "give a number of bytes"),
			"parameters":              parameters(f.First.Parameters),
		}),
	}
}

func (c *Callbacks) keys() map[string]setter {
	keys := map[string]setter{"primary": text(&c.Primary)}
	for _, action := range callbacks.Actions {
		keys[string(action)] = func(v tomlfile.Value) error {
			var command []string
			if v.Decode(&command) != nil || len(command) == 0 {
				return errors.New(`give a list: ["/path/of/the/program", "an argument"]`)
			}
			c.Commands[action] = command
			return nil
		}
	}
	return keys
}

func decode[T any](to *T, want string) setter {
	return func(v tomlfile.Value) error {
		if v.Decode(to) != nil {
			return errors.New(want)
		}
		return nil
	}
}

func text(to *string) setter { return decode(to, `give a string, in "quotes"`) }

func duration(to *time.Duration) setter {
	return func(v tomlfile.Value) error {
		var s string
		err := v.Decode(&s)
		if err == nil {
			*to, err = time.ParseDuration(s)
		}
		if err != nil || *to <= 0 {
			return errors.New(`give a duration, such as "3s"`)
		}
		return nil
	}
}

func table(name string, keys map[string]setter) setter {
	return func(v tomlfile.Value) error {
		below, ok := v.Table()
		if !ok {
			return fmt.Errorf("give a table: [%s]", name)
		}
		return take(name+".", below, keys)
	}
}

func parameters(to map[string]string) setter {
	return func(v tomlfile.Value) error {
		values, ok := v.Table()
		if !ok {
			return errors.New("give a table of PostgreSQL's parameters")
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			var x any
			_ = values[name].Decode(&x)
			switch x.(type) {
			case string, int64, float64, bool:
				to[name] = fmt.Sprint(x)
			default:
				return located{fmt.Errorf("%s: first.parameters.%s: give a string, a number, true or false",
					values[name].At(), name)}
			}
		}
		return nil
	}
}

// located is an error that says where it is.
type located struct{ error }

func take(prefix string, found tomlfile.Table, keys map[string]setter) error {
	names := slices.Sorted(maps.Keys(keys))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		v := found[name]
		set, ok := keys[name]
		if !ok {
			hint := ""
			if word := near.Word(name, names); word != "" {
				hint = "; did you mean " + word + "?"
			}
			return located{fmt.Errorf("%s: %s%s: there is no such key%s", v.At(), prefix, name, hint)}
		}
		err := set(v)
		if errors.As(err, &located{}) {
			return err
		}
		if err != nil {
			return located{fmt.Errorf("%s: %s%s: %w", v.At(), prefix, name, err)}
		}
	}
	return nil
}

// Begin returns what a new cluster begins with, the defaults of PostgreSQL's parameters too.
func (f *File) Begin() config.Shared {
	s, _, err := config.First(f.First).Read()
	if err != nil {
		panic(err) // check has refused it
	}
	return s
}

var plainName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,40}$`)

// check refuses what makes no sense, or cannot work.
func (f *File) check(path string) error {
	wrong := func(format string, args ...any) error { return fmt.Errorf(path+": "+format, args...) }
	for _, x := range []struct{ key, value string }{{"cluster", f.Cluster}, {"name", f.Name}} {
		if !plainName.MatchString(x.value) {
			return wrong("%s = %q: give up to 41 letters, digits, '_', '.' or '-'", x.key, x.value)
		}
	}
	for _, x := range []struct{ key, value string }{{"server.data", f.Data}, {"server.bin", f.Bin},
		{"server.socket", f.SocketDir}, {"server.replication.passfile", f.Passfile}} {
		if !filepath.IsAbs(x.value) {
			return wrong("%s = %q: give an absolute path", x.key, x.value)
		}
	}
	if !ownAddress(f.Listen) {
		return wrong("server.listen = %q: give this member's own HOST:PORT, by which the others reach it", f.Listen)
	}
	if err := f.API.check(); err != nil {
		return wrong("%w", err)
	}
	if err := f.Callbacks.check(); err != nil {
		return wrong("%w", err)
	}
	if f.ReplicationUser == "" {
		return wrong("server.replication.user: give the role as which standbys log in")
	}
	lower, err := server.Parameters(f.First.Parameters)
	if err != nil {
		return wrong("first.%w", err)
	}
	f.First.Parameters = lower
	s := f.First
	if !slices.Contains([]core.Durability{core.Quorum, core.Available, core.Async}, s.Durability) {
		return wrong("first.durability = %q: use quorum, available or async", s.Durability)
	}
	if s.Acks < 1 {
		return wrong("first.acks = %d: at least 1 standby must have a commit", s.Acks)
	}
	if f.TTL < 300*time.Millisecond || f.TTL > 5*time.Minute {
		return wrong("ttl = %q: use 300ms to 5m", f.TTL)
	}
	if f.LoopWait < 100*time.Millisecond || f.LoopWait > time.Minute {
		return wrong("loop_wait = %q: use 100ms to 1m", f.LoopWait)
	}
	if err := config.First(f.First).Validate(); err != nil {
		return wrong("first: %w", err)
	}
	return nil
}

// ownAddress says whether at is one address, by which one machine alone can be meant. With another
// one a standby would connect to itself, and follow nobody.
func ownAddress(at string) bool {
	host, port, err := net.SplitHostPort(at)
	ip := net.ParseIP(host)
	return err == nil && host != "" && port != "" && !strings.ContainsAny(host, "*, ") && !ip.IsUnspecified()
}

// check refuses commands that would be looked for where the agent happens to run.
func (c Callbacks) check() error {
	for _, action := range callbacks.Actions {
		command := c.Commands[action]
		if len(command) > 0 && !callbacks.Placed(command[0]) {
			return fmt.Errorf("callbacks.%s = %q: give an absolute path, or the name of a program in PATH", action,
				command[0])
		}
	}
	if c.Primary != "primary" && c.Primary != "master" {
		return fmt.Errorf(`callbacks.primary = %q: use primary, or master for scripts of Patroni 3`, c.Primary)
	}
	return nil
}

// check refuses an API that nobody could use as it is meant.
func (a API) check() error {
	if a == (API{}) {
		return nil
	}
	host, _, err := net.SplitHostPort(a.Listen)
	if err != nil {
		return fmt.Errorf("api.listen = %q: give HOST:PORT, such as \"10.0.0.1:8008\"", a.Listen)
	}
	ip := net.ParseIP(host)
	if _, _, err := net.SplitHostPort(a.Advertise); a.Advertise != "" && err != nil {
		return fmt.Errorf("api.advertise = %q: give the HOST:PORT by which others reach this API", a.Advertise)
	}
	if a.Advertise == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		return fmt.Errorf("api.listen = %q is no address to tell others: give api.advertise too, this member's own "+
			"HOST:PORT", a.Listen)
	}
	if (a.Cert == "") != (a.Key == "") {
		return errors.New("give api.tls_cert and api.tls_key, or neither")
	}
	if a.ClientCA != "" && a.Cert == "" {
		return errors.New("api.client_ca: give api.tls_cert and api.tls_key too: certificates come by TLS")
	}
	for _, x := range []struct{ key, path string }{{"token_file", a.TokenFile}, {"auth_file", a.AuthFile},
		{"tls_cert", a.Cert}, {"tls_key", a.Key}, {"client_ca", a.ClientCA}} {
		if x.path != "" && !filepath.IsAbs(x.path) {
			return fmt.Errorf("api.%s = %q: give an absolute path", x.key, x.path)
		}
	}
	return nil
}
