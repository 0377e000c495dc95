#!/bin/bash
# Tests a release: built twice it is the same, and what it installs works. TARGETS as for release.sh. It takes minutes.
# With a folder as its argument it tests what is there, and builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

if [ $# -gt 0 ]; then
	one=$(cd "$1" && pwd)
else
	one=$work/one
	REV=$(git rev-parse HEAD)
	export REV
	time scripts/release.sh "$one" >/dev/null
	# The second one from another folder, with nothing in the cache that could have been made by the first.
	GOCACHE=$work/cache scripts/release.sh "$work/two" >/dev/null
	diff -r "$one" "$work/two" || fail "the same commit has made other bytes"
	echo "ok: built twice, the same bytes"
fi
(cd "$one" && sha256sum --quiet -c SHA256SUMS) || fail "SHA256SUMS"

works() { # ROOT: of an installation
	local p=$1/usr/bin/primacy
	"$p" version | grep -q '^primacy v.*, commit [0-9a-f]\{12\}, 20' || fail "version: $("$p" version)"
	! ldd "$p" >/dev/null 2>&1 || fail "$p is not static"
	# A store, an election, and who leads it: the program does its work from there.
	(export XDG_STATE_HOME=$work/state XDG_RUNTIME_DIR=$work/run && mkdir -p -m 700 "$work/run" && cd "$work" &&
		[ "$("$p" run -q --id packaged n -- "$p" leader n)" = packaged ]) || fail "it does not lead"
	"$p" --config "$1/etc/primacy/primacy.toml" version >/dev/null || fail "its own example of a configuration"
	man -l "$1/usr/share/man/man1/primacy.1.gz" | grep -q 'exactly one of something' || fail "the manual"
	for verb in run lock leader top transfer version; do test -s "$1/usr/share/man/man1/primacy-$verb.1.gz" || fail "no manual of $verb"; done
	bash -c "source '$1/usr/share/bash-completion/completions/primacy' && complete -p primacy" >/dev/null || fail "the completion of bash"
	python3 -c "import json,sys; b=json.load(open(sys.argv[1])); n=[c['name'] for c in b['components']]; assert 'go.etcd.io/etcd/server/v3' in n and 'std' in n and len(n) > 40" \
		"$1/usr/share/doc/primacy/sbom.cdx.json" || fail "the bill of materials"
}

arch=$(dpkg --print-architecture)
for deb in "$one"/*_linux_"$arch".deb; do
	mkdir -p "$work/deb/var/lib/dpkg"
	touch "$work/deb/var/lib/dpkg/status"
	dpkg --root="$work/deb" --force-script-chrootless --force-not-root -i "$deb" >/dev/null || fail "dpkg -i $deb"
	works "$work/deb"
	dpkg --root="$work/deb" --force-script-chrootless --purge primacy >/dev/null
	[ -z "$(find "$work/deb/usr" "$work/deb/etc" -type f 2>/dev/null)" ] || fail "dpkg --purge leaves files"
	echo "ok: $(basename "$deb")"
done
if command -v rpm >/dev/null; then
	for rpm in "$one"/*_linux_"$arch".rpm; do
		mkdir -p "$work/rpm"
		rpm --root "$work/rpm" --nodeps --noscripts -i "$rpm" 2>/dev/null || fail "rpm -i $rpm"
		rpm --root "$work/rpm" -V --nodeps --noscripts primacy || fail "rpm -V"
		works "$work/rpm"
		rpm --root "$work/rpm" --noscripts -e primacy 2>/dev/null
		[ -z "$(find "$work"/rpm/usr "$work"/rpm/etc -type f 2>/dev/null)" ] || fail "rpm -e leaves files"
		echo "ok: $(basename "$rpm")"
	done
else
	echo "not tested: the .rpm (apt-get install rpm)"
fi
for t in "$one"/*.tar.gz; do
	name=$(basename "$t" .tar.gz)
	tar -tzf "$t" >"$work/list"
	for f in primacy LICENSE sbom.cdx.json man/primacy-run.1.gz completions/_primacy deploy/grafana/primacy.json; do
		grep -qx "$name/$f" "$work/list" || fail "$t lacks $f"
	done
	tar -xzf "$t" -C "$work" "$name/primacy"
	case $name in *_darwin_*) want=cffaedfe ;; *) want=7f454c46 ;; esac # Mach-O of 64 bits, ELF
	[ "$(head -c4 "$work/$name/primacy" | od -An -tx1 | tr -d ' ')" = $want ] || fail "$t holds a program of another system"
	echo "ok: $name.tar.gz, $(stat -c %s "$t") bytes"
done
