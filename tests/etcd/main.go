// The etcd that the tests run beside the distribution's: a pinned release, built from its own module.
// Its `replace` lines keep `go install` away, so this module requires it instead.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
