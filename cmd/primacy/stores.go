package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy/open"
)

// storesTopic is what `primacy help stores` shows: no verb, but what --store may say.
func storesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "stores",
		Short: "what --store may say",
		Long: `What --store (or PRIMACY_STORE) may say:

  embedded:[DIR]                                        etcd in this program, for one machine; the default
  etcd://[USER:PASSWORD@]HOST[:2379][,HOST…][/PREFIX]   etcds:// with TLS
  postgres://[USER[:PASSWORD]@]HOST[:5432]/DATABASE     TLS by sslmode=, and whatever else libpq knows; schema=NAME
  redis://[[USER]:PASSWORD@]HOST[:6379][/DB]            rediss:// with TLS; cluster=true, sentinel=MASTER, replicas=N, prefix=NAME,
                                                        sentinel-user=NAME, sentinel-password-file=FILE
  redis+quorum://HOST,HOST,HOST[/DB]                    independent servers, a majority decides; no tokens, no order
  redis+plain://HOST[/DB]                               the same over keys that redsync and redislock understand
  zk://[USER:PASSWORD@]HOST[:2181][,HOST…][/ROOT]       zks:// with TLS

Options follow as a query: password-file=FILE, and with TLS ca=FILE, cert=FILE, key=FILE, server-name=NAME (PostgreSQL has libpq's own).
Write %XX for / ? @ % in user and password: / is %2F, ? is %3F, @ is %40, % is %25.

What each can promise, and what not: primacy doctor --store URL.`,
	}
}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the SQL that a PostgreSQL store needs",
		Long: `Prints the SQL that creates what --store postgres://… needs, without connecting: for a database in which the program's own user may not create
tables. Whoever may runs it, in one transaction:

  primacy schema --store postgres://app@db/app | psql -1 -v ON_ERROR_STOP=1 postgres://admin@db/app`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			sql, err := open.Schema(a.store)
			if err != nil {
				return fmt.Errorf("--store: %w", err)
			}
			_, err = fmt.Fprint(a.stdout, sql)
			return err
		},
	}
}

// schemes are the beginnings of store URLs that a shell offers.
func schemes() []string {
	var all []string
	for _, s := range open.Schemes {
		all = append(all, s+"://")
	}
	return append(all, "etcds://", "rediss://", "zks://", embeddedScheme)
}
