//go:build linux

package main

import (
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

const deploy = "../../deploy"

// accepts fails unless the program takes these arguments; what stands behind a verb's NAME is the
// command's.
func accepts(t *testing.T, args []string) {
	t.Helper()
	a, _ := verbOf(t, "run")
	root := rootCommand(a)
	verb, rest, err := root.Find(args)
	if err != nil || verb == root {
		t.Errorf("%q: no such verb: %v", args, err)
		return
	}
	if err := verb.ParseFlags(rest); err != nil {
		t.Errorf("%q: %v", args, err)
	}
}

// unit reads a unit file: section → key → values.
func unit(t *testing.T, file string) map[string]map[string][]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all, section := map[string]map[string][]string{}, ""
	for i, line := range strings.Split(string(b), "\n") {
		key, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[' && strings.HasSuffix(line, "]"):
			section = strings.Trim(line, "[]")
			all[section] = map[string][]string{}
		case ok && section != "" && regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`).MatchString(key):
			all[section][key] = append(all[section][key], value)
		default:
			t.Errorf("%s:%d: %q", file, i+1, line)
		}
	}
	return all
}

func TestUnits(t *testing.T) {
	files, err := filepath.Glob(deploy + "/systemd/*.service")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		u := unit(t, file)
		exec := strings.Fields(u["Service"]["ExecStart"][0])
		if len(u["Service"]["ExecStart"]) != 1 || exec[0] != "/usr/bin/primacy" {
			t.Errorf("%s: %q", file, exec)
		}
		accepts(t, exec[1:])
		// 125 is also what a trouble ends with that passes: no address yet, a full folder.
		never := strings.Fields(strings.Join(u["Service"]["RestartPreventExitStatus"], " "))
		if slices.Contains(never, strconv.Itoa(exitUsage)) || slices.Contains(never, strconv.Itoa(exitLost)) ||
			!slices.Equal(u["Service"]["Restart"], []string{"always"}) {
			t.Errorf("%s: Restart=%q, RestartPreventExitStatus=%q", file, u["Service"]["Restart"], never)
		}
		// What commands and servers start must not end them when the kernel kills it for memory.
		if u["Service"]["KillMode"] != nil && !slices.Equal(u["Service"]["OOMPolicy"], []string{"continue"}) {
			t.Errorf("%s: OOMPolicy=%q", file, u["Service"]["OOMPolicy"])
		}
	}
	run := unit(t, deploy+"/systemd/primacy@.service")["Service"]
	for key, want := range map[string]string{"Type": "notify", "NotifyAccess": "main", "KillMode": "mixed",
		"Restart": "always", "RestartForceExitStatus": "122 123", "SuccessExitStatus": "143"} {
		if got := strings.Join(run[key], "|"); got != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("systemd-analyze is not installed: apt-get install systemd")
	}
	// With an executable that is there, and an instance of the template.
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, file := range append(files, deploy+"/systemd/primacy-serve.socket") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.Replace(filepath.Base(file), "@", "@x", 1)
		args = append(args, filepath.Join(dir, name))
		if err := os.WriteFile(args[len(args)-1], []byte(strings.ReplaceAll(string(b), "/usr/bin/primacy",
			"/bin/true")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || strings.Contains(string(out), dir) {
		t.Errorf("%v\n%s", err, out)
	}
}

// The example beside the units is a file that the program takes, with what is commented out too.
func TestTheExampleFile(t *testing.T) {
	b, err := os.ReadFile(deploy + "/systemd/example.toml")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^# ([a-z-]+ +=)`).ReplaceAllString(string(b), "$1")
	if strings.Count(all, "\n#") == strings.Count(string(b), "\n#") {
		t.Fatal("nothing is commented out")
	}
	a, _, err := prepared(t, "run", all, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{app: a}
	if err := r.named(nil, false); err != nil || r.name == "" || len(r.args) < 2 {
		t.Errorf("%q %q: %v", r.name, r.args, err)
	}
}

// What of Kubernetes' objects is used here. Decoded strictly: a misspelt field would be one that is
// silently not there.
type (
	object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			Replicas       int
			MaxUnavailable int `yaml:"maxUnavailable"`
			Selector       struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Strategy struct {
				Type          string
				RollingUpdate map[string]int `yaml:"rollingUpdate"`
			}
			Template struct {
				Metadata meta
				Spec     pod
			}
		}
	}
	meta struct {
		Name   string
		Labels map[string]string
	}
	pod struct {
		TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
		ServiceAccountName            string `yaml:"serviceAccountName"`
		SecurityContext               struct {
			RunAsNonRoot   bool              `yaml:"runAsNonRoot"`
			RunAsUser      int               `yaml:"runAsUser"`
			RunAsGroup     int               `yaml:"runAsGroup"`
			FSGroup        int               `yaml:"fsGroup"`
			SeccompProfile map[string]string `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		InitContainers []container `yaml:"initContainers"`
		Containers     []container
		Volumes        []struct {
			Name     string
			EmptyDir map[string]string `yaml:"emptyDir"`
		}
	}
	container struct {
		Name, Image   string
		RestartPolicy string `yaml:"restartPolicy"`
		Command, Args []string
		Env           []struct {
			Name, Value string
			ValueFrom   map[string]map[string]string `yaml:"valueFrom"`
		}
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe   *probe                       `yaml:"startupProbe"`
		LivenessProbe  *probe                       `yaml:"livenessProbe"`
		ReadinessProbe *probe                       `yaml:"readinessProbe"`
		Resources      map[string]map[string]string `yaml:"resources"`

		SecurityContext struct {
			AllowPrivilegeEscalation *bool               `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool                `yaml:"readOnlyRootFilesystem"`
			Capabilities             map[string][]string `yaml:"capabilities"`
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	probe struct {
		HTTPGet             struct{ Path, Port string } `yaml:"httpGet"`
		InitialDelaySeconds int                         `yaml:"initialDelaySeconds"`
		PeriodSeconds       int                         `yaml:"periodSeconds"`
		FailureThreshold    int                         `yaml:"failureThreshold"`
	}
)

func objects(t *testing.T, file string) (all []object) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.SetStrict(true)
	for {
		var o object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, o)
	}
}

func TestKubernetes(t *testing.T) {
	for _, file := range []string{"serve/deployment.yaml", "run/deployment.yaml"} {
		all := objects(t, deploy+"/kubernetes/"+file)
		if len(all) != 2 || all[0].Kind != "Deployment" || all[0].APIVersion != "apps/v1" ||
			all[1].Kind != "PodDisruptionBudget" || all[1].APIVersion != "policy/v1" {
			t.Fatalf("%s: %+v", file, all)
		}
		d, p := all[0].Spec, all[0].Spec.Template.Spec
		for name, labels := range map[string]map[string]string{"the pods": d.Template.Metadata.Labels,
			"the budget": all[1].Spec.Selector.MatchLabels} {
			if labels["app"] == "" || labels["app"] != d.Selector.MatchLabels["app"] {
				t.Errorf("%s: %s have labels %v", file, name, labels)
			}
		}
		if !p.SecurityContext.RunAsNonRoot || p.SecurityContext.RunAsUser == 0 ||
			p.SecurityContext.SeccompProfile["type"] != "RuntimeDefault" ||
			p.ServiceAccountName != "primacy" || d.Replicas < 2 ||
			all[1].Spec.MaxUnavailable != 1 {
			t.Errorf("%s: %+v", file, p)
		}
		for _, c := range slices.Concat(p.InitContainers, p.Containers) {
			s := c.SecurityContext
			if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem ||
				!slices.Equal(s.Capabilities["drop"], []string{"ALL"}) {
				t.Errorf("%s: %s: %+v", file, c.Name, s)
			}
			args := c.Args
			if len(c.Command) > 0 {
				args = c.Command[1:]
			}
			if len(args) == 0 {
				continue // the application's own
			}
			accepts(t, args)
			// The store is waited for for a minute, and until then nobody answers.
			if s := c.StartupProbe; s == nil || s.PeriodSeconds*s.FailureThreshold < 60 ||
				s.HTTPGet.Port != c.Ports[0].Name {
				t.Errorf("%s: %s: startup probe %+v", file, c.Name, s)
			}
			if c.LivenessProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/readyz" ||
				c.LivenessProbe.HTTPGet.Port != c.Ports[0].Name {
				t.Errorf("%s: %s: probes %+v, %+v", file, c.Name, c.LivenessProbe, c.ReadinessProbe)
			}
			if !strings.Contains(strings.Join(args, " "), ":"+strconv.Itoa(c.Ports[0].ContainerPort)) {
				t.Errorf("%s: %s: nobody listens on %d", file, c.Name, c.Ports[0].ContainerPort)
			}
		}
	}
	side := objects(t, deploy+"/kubernetes/serve/deployment.yaml")[0].Spec.Template.Spec
	if side.InitContainers[0].RestartPolicy != "Always" {
		t.Error("the sidecar is no native one: it would have to end before the application starts")
	}
	run := objects(t, deploy+"/kubernetes/run/deployment.yaml")[0].Spec.Template.Spec
	i := slices.Index(run.Containers[0].Command, "--stop-timeout")
	if stop, err := strconv.Atoi(strings.TrimSuffix(run.Containers[0].Command[i+1], "s")); err != nil ||
		run.TerminationGracePeriodSeconds < 2*stop {
		t.Errorf("%d s for a command that may take %d", run.TerminationGracePeriodSeconds, stop)
	}
}

// The image's recipe: known instructions, stages that are there, no root, and a program that takes
// the arguments.
func TestDockerfile(t *testing.T) {
	b, err := os.ReadFile(deploy + "/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"FROM", "WORKDIR", "COPY", "ARG", "ENV", "RUN", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
	var stages []string
	last := map[string]string{} // of the last stage
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		if !slices.Contains(known, word) {
			t.Errorf("line %d: %q", i+1, line)
		}
		if word == "FROM" {
			stages, last = append(stages, regexp.MustCompile(`(?i)^.* AS `).ReplaceAllString(rest, "")),
				map[string]string{}
		}
		if from := regexp.MustCompile(`--from=(\S+)`).FindStringSubmatch(rest); from != nil &&
			!slices.Contains(stages, from[1]) {
			t.Errorf("line %d: no stage %s", i+1, from[1])
		}
		last[word] = rest
	}
	if !slices.Equal(stages, []string{"build", "scratch"}) || last["USER"] != "65532:65532" ||
		last["ENTRYPOINT"] != `["/primacy"]` || last["CMD"] != `["serve"]` {
		t.Errorf("stages %q, last %q", stages, last)
	}
	if !strings.Contains(string(b), "CGO_ENABLED=0") || strings.Contains(string(b), "password") {
		t.Error("the program is not static, or a secret is in the recipe")
	}
}

// IMAGE=1 builds what the Dockerfile builds and looks whether it needs anything of the system: it
// is alone in its image.
func TestTheImagesProgramIsAlone(t *testing.T) {
	if os.Getenv("IMAGE") == "" {
		t.Skip("IMAGE=1 builds the program as the Dockerfile does")
	}
	b, err := os.ReadFile(deploy + "/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^RUN (go build .*) -o /out/primacy (\S+)`).FindStringSubmatch(string(b))
	if line == nil {
		t.Fatal("no line that builds the program")
	}
	out := filepath.Join(t.TempDir(), "primacy")
	c := exec.Command("sh", "-c", line[1]+" -o "+out+" "+line[2])
	c.Dir, c.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatal(err, string(text))
	}
	f, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libs, _ := f.ImportedLibraries()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) || len(libs) > 0 {
		t.Errorf("it is not static: %q", libs)
	}
	// In an empty root, as nobody, it says what it can do.
	run := exec.Command("unshare", "-r", "--root="+filepath.Dir(out), "/primacy", "help")
	if text, err := run.CombinedOutput(); err != nil || !strings.Contains(string(text), "primacy run") {
		t.Errorf("%v: %s", err, text)
	}
}
