// Reads public keys of ML-KEM with Go's own library. A line on standard input is a public key in PEM,
// in base64; the answer is a line: the object identifier, a ciphertext and its shared secret, the
// latter two in hexadecimal.
package main

import (
	"bufio"
	"crypto/mlkem"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log"
	"os"
)

type publicKeyInfo struct {
	Algorithm pkix.AlgorithmIdentifier
	Key       asn1.BitString
}

func encapsulate(key []byte) ([]byte, []byte, error) {
	if len(key) == mlkem.EncapsulationKeySize768 {
		read, err := mlkem.NewEncapsulationKey768(key)
		if err != nil {
			return nil, nil, err
		}
		secret, ciphertext := read.Encapsulate()
		return secret, ciphertext, nil
	}
	read, err := mlkem.NewEncapsulationKey1024(key)
	if err != nil {
		return nil, nil, err
	}
	secret, ciphertext := read.Encapsulate()
	return secret, ciphertext, nil
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		text, err := base64.StdEncoding.DecodeString(lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		block, rest := pem.Decode(text)
		if block == nil || block.Type != "PUBLIC KEY" || len(rest) > 0 {
			log.Fatal("not one public key in PEM")
		}
		var info publicKeyInfo
		rest, err = asn1.Unmarshal(block.Bytes, &info)
		if err != nil || len(rest) > 0 || len(info.Algorithm.Parameters.FullBytes) > 0 {
			log.Fatal("not one SubjectPublicKeyInfo without parameters")
		}
		secret, ciphertext, err := encapsulate(info.Key.RightAlign())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %x %x\n", info.Algorithm.Algorithm, ciphertext, secret)
	}
}
