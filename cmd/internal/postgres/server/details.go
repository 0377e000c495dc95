package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Details is what people and their tools ask of a server, and no decision needs.
type Details struct {
	At      time.Duration // on the boot clock: when it was asked; set by who asks
	Started time.Time     // of the postmaster
	Version int           // such as 150018

	Primary    bool
	Received   core.LSN // of a standby, as the next three
	Replayed   core.LSN
	ReplayedAt time.Time     // when the last replayed transaction was committed; zero: none was
	Paused     bool          // replay is
	PrimaryEnd core.LSN      // where the primary's WAL ended when it last told; 0: not known
	HeardAgo   time.Duration // since the primary's last message, while WAL streams; negative: not known
	Streams    bool          // a walreceiver does
	Senders    []SenderDetails
}

// SenderDetails is one walsender, by the names of Patroni.
type SenderDetails struct {
	User        string  `json:"usename"`
	Application string  `json:"application_name"`
	Client      *string `json:"client_addr"`
	State       string  `json:"state"`
	Sync        string  `json:"sync_state"`
	Priority    int     `json:"sync_priority"`
}

// DetailsOf asks a server for what no decision needs.
func DetailsOf(ctx context.Context, s *Server) (d Details, err error) {
	row, err := s.row(ctx, `SELECT extract(epoch FROM pg_postmaster_start_time()),
		current_setting('server_version_num'), NOT pg_is_in_recovery(),
		coalesce(pg_last_wal_receive_lsn(), '0/0'), coalesce(pg_last_wal_replay_lsn(), '0/0'),
		coalesce(extract(epoch FROM pg_last_xact_replay_timestamp()), 0),
		CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
		coalesce((SELECT latest_end_lsn FROM pg_stat_wal_receiver), '0/0'),
		EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'),
		coalesce((SELECT json_agg(r) FROM (SELECT usename, application_name, client_addr, state, sync_state,
			sync_priority FROM pg_stat_replication ORDER BY application_name) r), '[]'),
		coalesce((SELECT extract(epoch FROM clock_timestamp() - last_msg_receipt_time) FROM pg_stat_wal_receiver
			WHERE status = 'streaming'), -1)`)
	if err != nil {
		return d, err
	}
	wrong := func(err error) (Details, error) { return d, fmt.Errorf("details of the server: %w", err) }
	if d.Started, err = epoch(row[0]); err != nil {
		return wrong(err)
	}
	if d.Version, err = strconv.Atoi(row[1]); err != nil {
		return wrong(err)
	}
	if d.ReplayedAt, err = epoch(row[5]); err != nil {
		return wrong(err)
	}
	for i, to := range map[int]*core.LSN{3: &d.Received, 4: &d.Replayed, 7: &d.PrimaryEnd} {
		if *to, err = core.ParseLSN(row[i]); err != nil {
			return wrong(err)
		}
	}
	d.Primary, d.Paused, d.Streams = row[2] == "t", row[6] == "t", row[8] == "t"
	if err := json.Unmarshal([]byte(row[9]), &d.Senders); err != nil {
		return wrong(err)
	}
	ago, err := strconv.ParseFloat(row[10], 64)
	if err != nil {
		return wrong(err)
	}
	d.HeardAgo = time.Duration(ago * float64(time.Second))
	return d, nil
}

// epoch reads seconds since 1970; 0 is no time.
func epoch(text string) (time.Time, error) {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || seconds == 0 {
		return time.Time{}, err
	}
	return time.UnixMicro(int64(seconds * 1e6)).UTC(), nil
}
