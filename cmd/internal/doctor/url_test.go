package doctor

import (
	"strings"
	"testing"
)

// What everybody may see of a store URL has no password in it, wherever that stands and however it
// is written.
func TestWhatEverybodyMaySeeOfAStoreURL(t *testing.T) {
	for raw, want := range map[string]string{
		"etcd://10.0.0.1:2379,10.0.0.2/app":                      "etcd://10.0.0.1:2379,10.0.0.2/app",
		"etcd://root:hunter2@10.0.0.1:2379/app":                  "etcd://10.0.0.1:2379/app",
		"postgres://app:hunter2@db/app?sslmode=verify-full":      "postgres://db/app",
		"postgres://db/app?password=hunter2":                     "postgres://db/app",
		"redis://:hunter2@[::1]:6379/1":                          "redis://[::1]:6379/1",
		"redis://u:p%40hunter2@h":                                "redis://h",
		"postgres://app:hun/ter2@db/app":                         "postgres",
		"postgres://app:hunter2?x@db/app":                        "postgres",
		"postgres://app:hunter2/x":                               "postgres",
		"etcd+unix:///run/primacy/s":                             "etcd+unix:///run/primacy/s",
		"embedded:/var/lib/primacy":                              "embedded",
		"":                                                       "",
		"k8s://prod?kubeconfig=/home/hunter2/config":             "k8s://prod",
		"redis://h/?sentinel-password-file=/hunter2@x":           "redis",
		"etcd://a:1,b:hunter2":                                   "etcd",
		"postgres://u:1234@h:5432/db?options=-c%20x%3Dhunter2@h": "postgres://h:5432/db",
	} {
		got := Public(raw)
		if got != want {
			t.Errorf("%s is shown as %s, want %s", raw, got, want)
		}
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s is shown with its password: %s", raw, got)
		}
	}
}
