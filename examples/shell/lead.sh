#!/usr/bin/env bash
# lead.sh NAME STEP [ARG...]: does STEP again and again while this shell leads the election NAME, through `primacy serve` on this machine.
#
# STEP finds the fencing token in PRIMACY_TOKEN. It should be short: it is killed at the deadline that was known when it began. Whatever ends this shell, the
# election is kept until STEP has ended; only who kills curl alone gives it up beside a STEP. 'primacy run' has no such gap.
# Exit status: 0 after SIGTERM, SIGINT or SIGHUP, 121 no sidecar, 122 leadership was lost, else that of a STEP that failed.
set -u
name=${1:?usage: lead.sh NAME STEP [ARG...]}
shift
: "${1:?usage: lead.sh NAME STEP [ARG...]}"
[[ $name =~ ^[A-Za-z0-9._/-]+$ ]] || { echo "lead.sh: $name: use letters, digits, '.', '_', '-' and '/'" >&2; exit 1; }
socket=${PRIMACY_SOCKET:-${XDG_RUNTIME_DIR:-/run}/primacy/primacy.sock}

stop='' event='' token='' deadline=0 ttl=0
trap 'stop=yes; [[ -n $token ]] || kill -KILL "$curl"' TERM INT HUP # while it waits, the end of curl ends the wait
# The connection IS the leadership: curl holds it open and prints a line of JSON for each event. When this shell and its step have ended in whatever way,
# curl's next line finds no reader and it ends too, which resigns ("direct": no proxy may be in between). A signal for all processes of a terminal or a service must not end it beside a step.
exec {events}< <(trap '' TERM INT HUP && exec curl -sSN --unix-socket "$socket" -H 'Content-Type: application/json' -d '{"direct":true}' "http://localhost/v1/elections/${name//\//%2F}/campaign")
curl=$!

leave() { # the work has stopped: closing the connection lets the next one lead
	kill -KILL "$curl" 2>/dev/null
	exit "$1"
}

# Milliseconds of the boot clock, which goes on in suspend: the instant at which the subshell of $(now) began (field 22 of its stat, in ticks of 10 ms).
# They are cut: 10 ms are added, so that it is never slow. /proc/uptime is not that clock where lxcfs is mounted over it: a container's own would be late by hours.
now() {
	local stat
	read -r stat </proc/self/stat
	stat=(${stat##*) })
	echo $((stat[19] * 10 + 10))
}
read -r boot </proc/sys/kernel/random/boot_id

take() { # one line: {"event":"renewed",...,"token":"7",...,"deadline_boot_ns":"123"}
	[[ $1 =~ \"event\":\"([a-z]+)\" ]] && event=${BASH_REMATCH[1]} || event=ended # not a line of ours: an error
	[[ $1 =~ \"token\":\"([0-9]+)\" ]] && token=${BASH_REMATCH[1]}
	[[ $1 =~ \"ttl_ms\":([0-9]+) ]] && ttl=${BASH_REMATCH[1]}
	if [[ $1 =~ \"deadline_boot_ns\":\"([0-9]+)\" ]]; then
		deadline=$((BASH_REMATCH[1] / 1000000))
		# Of another machine's clock, or of another time namespace's, a deadline says nothing here.
		local now
		now=$(now)
		if [[ $1 != *"\"boot_id\":\"$boot\""* || -z $now ]] || ((deadline - now > ttl)); then
			echo "lead.sh: the sidecar's clock is not this shell's: $1" >&2
			event=ended
			return
		fi
	fi
	case $event in elected) echo "leads $token" ;; ended) echo "$1" >&2 ;; esac
}

while [[ -z $stop ]]; do
	# Wait for a line while there is nothing to do, else take those that are there.
	while [[ -z $token ]] || read -r -t 0 <&"$events"; do
		if ! read -r line <&"$events"; then
			[[ -n $stop ]] && leave 0
			[[ -n $token ]] && leave 122 # the sidecar is gone: nobody tells us any more that we lead
			leave 121
		fi
		take "$line"
		[[ $event == ended ]] && leave $([[ -n $token ]] && echo 122 || echo 121)
		[[ $event == stopping ]] && leave 122 # no step is running now, so the work has stopped
		[[ -n $stop ]] && leave 0
	done
	# The step is gone by the deadline, even if this shell is killed or the sidecar hangs. It keeps curl's reader: without, curl would end before it.
	# timeout counts from when it has started: the clock is read last before that, and 100 ms are left for it. If all is frozen just there, the step runs late.
	(
		now=$(now)
		[[ -n $now ]] || exit 137 # the clock could not be read
		left=$((deadline - now - 100))
		((left > 0)) || exit 137 # by the clock, whatever was read: this shell may have been frozen
		printf -v left '%d.%03d' $((left / 1000)) $((left % 1000))
		PRIMACY_TOKEN=$token exec timeout -s KILL "$left" "$@"
	)
	status=$?
	((status == 137)) && leave 122
	((status == 0)) || leave $status
done
leave 0
