#!/bin/bash
# Builds the release of REV (default HEAD) into DIR (default dist/): static programs for linux and darwin, archives, .deb, .rpm, SBOMs and SHA256SUMS.
# The same commit and toolchain make the same bytes. VERSION defaults to the tag. What is not committed is not in it.
#
#	scripts/release.sh [DIR]        TARGETS="linux/amd64" for some only
set -euo pipefail
cd "$(dirname "$0")/.."
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.44.1
out=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
targets=${TARGETS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}
commit=$(git rev-parse "${REV:-HEAD}^{commit}")
export SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
# Five commits after v1.2.3 is v1.2.3+5.g…: written with a dash, packages would take it for older than v1.2.3.
VERSION=${VERSION:-$(git describe --tags --match 'v*' "$commit" 2>/dev/null | sed -E 's/-([0-9]+)-(g[0-9a-f]+)$/+\1.\2/' || echo "v0.0.0-$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).g${commit:0:12}")}
export VERSION TZ=UTC LC_ALL=C CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" GOENV=off
unset GOOS GOARCH GOEXPERIMENT GOAMD64 GOARM64
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src" "$work/bin"
git archive "$commit" | tar -x -C "$work/src"
cd "$work/src"
flags="-s -w -buildid= -X main.version=$VERSION -X main.commit=$commit -X main.date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"

# What depends on no platform: the manual, and the shells' completions.
go build -ldflags="$flags" -o "$work/bin/host" ./cmd/primacy
go build -o "$work/bin/sbom" ./cmd/internal/sbom
go run -tags docs -ldflags="$flags" ./cmd/primacy gendocs "$work/docs"
gzip -9n "$work"/docs/man1/*
mkdir "$work/completions"
for s in bash:primacy.bash zsh:_primacy fish:primacy.fish; do
	env -i HOME=/nonexistent PATH="$PATH" "$work/bin/host" completion "${s%%:*}" >"$work/completions/${s#*:}"
done

pack() { # NAME: $work/NAME to NAME.tar.gz
	tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -c "$1" | gzip -9n >"$out/$1.tar.gz"
}

archive() { # NAME PROGRAM
	local dir=$work/$1
	mkdir -p "$dir/man" "$dir/completions" "$dir/reference"
	cp "$2" "$dir/primacy"
	cp LICENSE README.md CHANGELOG.md "$dir/"
	cp "$work"/docs/man1/* "$dir/man/"
	cp "$work"/docs/reference/* "$dir/reference/"
	cp "$work"/completions/* "$dir/completions/"
	cp -r deploy "$dir/deploy"
	rm -rf "$dir/deploy/package"
	cp deploy/package/primacy.toml "$dir/deploy/"
	cp "$out/$1.cdx.json" "$dir/sbom.cdx.json"
	pack "$1"
}

packages() { # NAME ARCH: the .deb and the .rpm of the archive's folder
	local from=$work/$1 p=$work/pkg-$2
	local usr=$p/root/usr
	mkdir -p "$usr/bin" "$usr/share/man/man1" "$usr/share/bash-completion/completions" "$usr/share/fish/vendor_completions.d" "$usr/share/doc/primacy" \
		"$usr/lib/systemd/system" "$p/root/etc/primacy"
	cp "$from/primacy" "$usr/bin/"
	cp "$from"/man/* "$usr/share/man/man1/"
	cp "$from/completions/primacy.bash" "$usr/share/bash-completion/completions/primacy"
	cp "$from/completions/primacy.fish" "$usr/share/fish/vendor_completions.d/"
	cp "$from/README.md" "$from/CHANGELOG.md" "$from/sbom.cdx.json" "$usr/share/doc/primacy/"
	cp -r "$from/deploy" "$usr/share/doc/primacy/examples"
	if [ -d deploy/systemd ]; then find deploy/systemd \( -name '*.service' -o -name '*.socket' -o -name '*.timer' \) -exec cp {} "$usr/lib/systemd/system/" \; ; fi
	rmdir --ignore-fail-on-non-empty "$usr/lib/systemd/system" "$usr/lib/systemd" "$usr/lib"
	cp deploy/package/primacy.toml "$p/root/etc/primacy/"
	cp -r "$work/completions" "$p/completions"
	cp deploy/package/nfpm.yaml deploy/package/*.sh deploy/package/copyright LICENSE "$p/"
	local plain=${VERSION#v}
	printf 'primacy (%s) stable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- Primacy <primacy@localhost.invalid>  %s\n' \
		"${plain/-/\~}" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$p/changelog.gz"
	find "$p" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	chmod -R u=rwX,go=rX "$p/root"
	for kind in deb rpm; do
		(cd "$p" && ARCH=$2 GOWORK=off GOFLAGS= "$work/bin/nfpm" package --config nfpm.yaml --packager $kind --target "$out/primacy_${VERSION}_linux_$2.$kind" >/dev/null)
	done
}

rm -f "$out"/primacy_*
(cd "$work" && GOWORK=off GOFLAGS= GOBIN="$work/bin" go install "$NFPM")
for t in $targets; do
	os=${t%/*} arch=${t#*/} name=primacy_${VERSION}_${t/\//_}
	GOOS=$os GOARCH=$arch go build -ldflags="$flags" -o "$work/bin/$name" ./cmd/primacy
	"$work/bin/sbom" "$work/bin/$name" "$VERSION" >"$out/$name.cdx.json"
	archive "$name" "$work/bin/$name"
	if [ "$os" = linux ]; then packages "$name" "$arch"; fi
done
(cd "$out" && sha256sum primacy_* >SHA256SUMS)
ls -l "$out"
