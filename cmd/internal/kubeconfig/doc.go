// Package kubeconfig reads how kubectl reaches a cluster, for --store k8s://: certificates, tokens,
// files with tokens, exec plugins, several files in $KUBECONFIG. It is some 250 lines over a parser
// of YAML that the program has anyway; client-go's own loader makes the program larger by 4.0 MB
// (9 %). What it does not do it refuses in words: user and password, as, auth-provider,
// proxy-url, plugins that ask a person.
package kubeconfig
