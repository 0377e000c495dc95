#!/bin/sh
# Before the package is removed its units are stopped, or they would run on without their program; not before an upgrade.
set -e
case "${1:-}" in remove | 0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ] && [ -z "${DPKG_ROOT:-}" ]; then
	systemctl stop primacy-serve.socket primacy-serve.service primacy-cron.service 'primacy@*.service' 'primacy-postgres@*.service' || true
fi
