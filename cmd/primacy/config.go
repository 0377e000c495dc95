package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy/cmd/internal/near"
	"github.com/primacy-go/primacy/cmd/internal/tomlfile"
)

// configArgs marks a verb whose NAME and COMMAND may stand in its section of the file, as "name"
// and "command".
const configArgs = "primacy-config-args"

// configLimit bounds a configuration file.
const configLimit = 1 << 20

// config is what a file says to one verb.
type config struct {
	path   string
	file   *tomlfile.File
	flags  map[string]setting // by the flag's name; the verb's own section before what stands above all sections
	name   string             // NAME, if it is given here
	args   []string           // COMMAND, likewise
	secret string             // the first key that holds a password
}

// setting is one key's value, as the words that a flag would take, and where it stands.
type setting struct {
	key   string
	words []string
	at    string // "file:line"
}

// readConfig reads the file for cmd. What is unknown is an error, in every section: a misspelt key
// would otherwise be a setting that is silently not there.
func readConfig(path string, cmd *cobra.Command) (*config, error) {
	text, err := tomlfile.Read(path, configLimit)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return parseConfig(path, text, cmd)
}

func parseConfig(path, text string, cmd *cobra.Command) (*config, error) {
	c := &config{path: path, flags: map[string]setting{}}
	file, top, err := tomlfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	c.file = file
	return c, c.section(cmd.Root(), cmd, nil, top)
}

// section takes in the keys of one table: flags of verb, or tables of the verbs below it.
func (c *config) section(verb, wanted *cobra.Command, path toml.Key, keys tomlfile.Table) error {
	for _, key := range c.order(path, keys) {
		v := keys[key]
		full := append(slices.Clone(path), key)
		switch sub, f := subcommand(verb, key), configurable(verb, key); {
		case sub != nil:
			below, ok := v.Table()
			if !ok {
				return fmt.Errorf("%s: %s must be a table: [%s]", v.At(), full, full)
			}
			if err := c.section(sub, wanted, full, below); err != nil {
				return err
			}
		case verb.Annotations[configArgs] != "" && (key == "name" || key == "command" && v.IsList()):
			if err := c.argument(verb == wanted, key, full, v); err != nil {
				return err
			}
		case f == nil && verb.Annotations[configArgs] != "" && key == "command":
			return fmt.Errorf("%s: %s must be a list, such as [\"sh\", \"-c\", \"echo hello\"]: there is no shell",
				v.At(), full)
		case f != nil:
			s, err := settingOf(full, v)
			if err != nil {
				return err
			}
			if within(wanted, verb) {
				c.put(f.Name, s)
			}
		default:
			return fmt.Errorf("%s: unknown key %s%s", v.At(), full, hint(near.Word(key, known(verb))))
		}
	}
	return nil
}

// order returns the keys of a table in the order of the file, those that are not tables first: so a
// section comes after what it overrides.
func (c *config) order(path toml.Key, keys tomlfile.Table) []string {
	var plain, tables []string
	for _, k := range c.file.Keys() {
		if len(k) != len(path)+1 || !slices.Equal(k[:len(path)], path) {
			continue
		}
		last := k[len(path)]
		if _, ok := keys[last]; !ok || slices.Contains(plain, last) || slices.Contains(tables, last) {
			continue
		}
		if keys[last].IsTable() {
			tables = append(tables, last)
		} else {
			plain = append(plain, last)
		}
	}
	var rest []string // dotted keys name no table of their own
	for k := range keys {
		if !slices.Contains(plain, k) && !slices.Contains(tables, k) {
			rest = append(rest, k)
		}
	}
	slices.Sort(rest)
	return slices.Concat(plain, tables, rest)
}

func (c *config) put(flag string, s setting) {
	c.flags[flag] = s
	if c.secret == "" && secret(flag, s.words) {
		c.secret = s.key
	}
}

// argument takes in NAME or COMMAND.
func (c *config) argument(wanted bool, key string, full toml.Key, v tomlfile.Value) error {
	s, err := settingOf(full, v)
	switch {
	case err != nil:
		return err
	case key == "name" && (len(s.words) != 1 || v.IsList()):
		return fmt.Errorf("%s: %s must be one string", s.at, full)
	case !wanted:
	case key == "name":
		c.name = s.words[0]
	default:
		c.args = s.words
	}
	return nil
}

// settingOf returns a key's value as words.
func settingOf(key toml.Key, v tomlfile.Value) (setting, error) {
	s := setting{key: key.String(), at: v.At()}
	var x any
	if err := v.Decode(&x); err != nil {
		return s, fmt.Errorf("%s: %s: %w", s.at, key, err)
	}
	list, ok := x.([]any)
	if !ok {
		list = []any{x}
	}
	for _, v := range list {
		switch v := v.(type) {
		case string:
			s.words = append(s.words, v)
		case int64:
			s.words = append(s.words, strconv.FormatInt(v, 10))
		case float64:
			s.words = append(s.words, strconv.FormatFloat(v, 'g', -1, 64))
		case bool:
			s.words = append(s.words, strconv.FormatBool(v))
		default:
			return s, fmt.Errorf("%s: %s must be a string, a number, true or false, or a list of these", s.at, key)
		}
	}
	return s, nil
}

// set gives a flag what the file says, if it says something.
func (c *config) set(flags *pflag.FlagSet, f *pflag.Flag) error {
	if c == nil {
		return nil
	}
	s, ok := c.flags[f.Name]
	if !ok {
		return nil
	}
	if _, many := f.Value.(pflag.SliceValue); !many && len(s.words) != 1 {
		return fmt.Errorf("%s: %s must be one value", s.at, s.key)
	}
	for _, w := range s.words {
		if err := flags.Set(f.Name, w); err != nil {
			var invalid *pflag.InvalidValueError // its own words would show the value of a flag that nobody typed
			if errors.As(err, &invalid) {
				err = invalid.Unwrap()
			}
			return fmt.Errorf("%s: %s: %w", s.at, s.key, err)
		}
	}
	return nil
}

// exposed says which key of a file that everybody may read holds a password; "" if none does.
func (c *config) exposed() string {
	info, err := os.Stat(c.path)
	if err != nil || info.Mode().Perm()&0o004 == 0 {
		return ""
	}
	return c.secret
}

// secret says whether a flag's value is to be kept from others.
func secret(flag string, words []string) bool {
	if strings.HasSuffix(flag, "-file") {
		return false
	}
	for _, word := range []string{"password", "secret", "token"} {
		if strings.Contains(flag, word) {
			return true
		}
	}
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "://") && hasPassword(w) })
}

func subcommand(verb *cobra.Command, name string) *cobra.Command {
	for _, sub := range verb.Commands() {
		if sub.Name() == name && (sub.IsAvailableCommand() || sub.HasSubCommands()) && sub.Name() != "help" &&
			sub.Name() != "completion" {
			return sub
		}
	}
	return nil
}

// within says whether verb is cmd or above it.
func within(cmd, verb *cobra.Command) bool {
	for c := cmd; c != nil; c = c.Parent() {
		if c == verb {
			return true
		}
	}
	return false
}

// configurable returns the flag of that name, if it can stand in a file.
func configurable(verb *cobra.Command, name string) *pflag.Flag {
	if name == "help" || name == "config" {
		return nil
	}
	for _, fs := range []*pflag.FlagSet{verb.LocalFlags(), verb.InheritedFlags()} {
		if f := fs.Lookup(name); f != nil && !f.Hidden {
			return f
		}
	}
	return nil
}

// known returns all keys that a verb's table may have.
func known(verb *cobra.Command) (names []string) {
	for _, fs := range []*pflag.FlagSet{verb.LocalFlags(), verb.InheritedFlags()} {
		fs.VisitAll(func(f *pflag.Flag) {
			if configurable(verb, f.Name) != nil {
				names = append(names, f.Name)
			}
		})
	}
	for _, sub := range verb.Commands() {
		if subcommand(verb, sub.Name()) != nil {
			names = append(names, sub.Name())
		}
	}
	if verb.Annotations[configArgs] != "" {
		names = append(names, "name", "command")
	}
	return names
}
