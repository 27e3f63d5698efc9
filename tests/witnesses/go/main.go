// Verifies a tlog-proof with a policy of keys, by the code of another implementation:
// verify-proof POLICY PROOF. The leaf is the proof's extra data.
package main

import (
	"log"
	"os"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/tlog"
)

func main() {
	policy, err := torchwood.ParsePolicy(read(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	proof := read(os.Args[2])
	record, err := torchwood.ProofExtraData(proof)
	if err != nil {
		log.Fatal(err)
	}
	if err := torchwood.VerifyProof(policy, tlog.RecordHash(record), proof); err != nil {
		log.Fatal(err)
	}
}

func read(name string) []byte {
	data, err := os.ReadFile(name)
	if err != nil {
		log.Fatal(err)
	}
	return data
}
