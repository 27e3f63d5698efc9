// Interop calls Transit by the clients that Go programs use, and prints a line for each call: its
// name, and "works" or the reason.
//
// The clients are vault/api, on which Terraform, SOPS and most Go programs are built, and the
// wrapper with which OpenBao unseals itself. Address and token are in VAULT_ADDR and VAULT_TOKEN.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
	wrapping "github.com/openbao/go-kms-wrapping/v2"
	"github.com/openbao/go-kms-wrapping/wrappers/transit/v2"
)

var (
	text    = []byte("4111 1111 1111 1111")
	errElse = errors.New("does something else")
)

func report(name string, err error) {
	result := "works"
	if err != nil {
		result = strings.Join(strings.Fields(err.Error()), " ")
	}
	fmt.Printf("%s\t%s\n", name, result)
}

func expect(isTrue bool, err error) error {
	if err == nil && !isTrue {
		return errElse
	}
	return err
}

func main() {
	client, err := api.NewClient(api.DefaultConfig())
	report("NewClient", err)
	name := fmt.Sprintf("go-%d", time.Now().UnixNano())
	server(client)
	token(client)
	transitKey(client, name)
	unseal(name)
}

func server(client *api.Client) {
	health, err := client.Sys().Health()
	report("Sys.Health", expect(err == nil && health.Initialized && !health.Sealed, err))
	status, err := client.Sys().SealStatus()
	report("Sys.SealStatus", expect(err == nil && !status.Sealed && status.Version != "", err))
	_, err = client.Sys().Leader()
	report("Sys.Leader", err)
	isInitialized, err := client.Sys().InitStatus()
	report("Sys.InitStatus", expect(isInitialized, err))
	mounts, err := client.Sys().ListMounts()
	report("Sys.ListMounts", expect(err == nil && mounts["transit/"] != nil, err))
}

func token(client *api.Client) {
	secret, err := client.Auth().Token().LookupSelf()
	if err == nil {
		_, err = secret.TokenTTL()
	}
	report("Token.LookupSelf", err)
	secret, err = client.Auth().Token().RenewSelf(0)
	report("Token.RenewSelf", expect(err == nil && secret.Auth != nil, err))
	if err != nil {
		return
	}
	watcher, err := client.NewLifetimeWatcher(&api.LifetimeWatcherInput{Secret: secret})
	if err == nil {
		go watcher.Start()
		select {
		case err = <-watcher.DoneCh():
		case <-watcher.RenewCh():
		case <-time.After(time.Second):
		}
		watcher.Stop()
	}
	report("LifetimeWatcher", err)
}

func transitKey(client *api.Client, name string) {
	path := "transit/keys/" + name
	secret, err := client.Logical().Read(path)
	report("Read of an unknown key", expect(secret == nil, err))
	_, err = client.Logical().Write(path, nil)
	report("Write of a key", err)
	secret, err = client.Logical().List("transit/keys")
	isListed := false
	if err == nil && secret != nil {
		names, _ := secret.Data["keys"].([]interface{})
		for _, listed := range names {
			isListed = isListed || listed == name
		}
	}
	report("List of keys", expect(isListed, err))
	secret, err = client.Logical().Read(path)
	isNumber := false
	if err == nil && secret != nil {
		_, isNumber = secret.Data["latest_version"].(json.Number)
	}
	report("Read of a key", expect(isNumber, err))
	encoded := base64.StdEncoding.EncodeToString(text)
	secret, err = client.Logical().Write(
		"transit/encrypt/"+name, map[string]interface{}{"plaintext": encoded})
	report("Write of a plaintext", err)
	if err != nil {
		return
	}
	opened, err := client.Logical().Write("transit/decrypt/"+name,
		map[string]interface{}{"ciphertext": secret.Data["ciphertext"]})
	report("Write of a ciphertext", expect(err == nil && opened.Data["plaintext"] == encoded, err))
	_, err = client.Logical().Write(path+"/config", map[string]interface{}{"deletion_allowed": true})
	report("Write of a configuration", err)
	_, err = client.Logical().Delete(path)
	report("Delete of a key", err)
	secret, err = client.Logical().Read(path)
	report("Read of a deleted key", expect(secret == nil, err))
}

func unseal(name string) {
	ctx := context.Background()
	wrapper := transit.NewWrapper()
	_, err := wrapper.SetConfig(ctx, wrapping.WithConfigMap(map[string]string{
		"address":    os.Getenv("VAULT_ADDR"),
		"token":      os.Getenv("VAULT_TOKEN"),
		"mount_path": "transit/",
		"key_name":   name + "-unseal",
	}))
	report("Wrapper.SetConfig", err)
	if err != nil {
		return
	}
	blob, err := wrapper.Encrypt(ctx, text)
	report("Wrapper.Encrypt", expect(err == nil && blob.KeyInfo.KeyId == "v1", err))
	if err != nil {
		return
	}
	opened, err := wrapper.Decrypt(ctx, blob)
	report("Wrapper.Decrypt", expect(bytes.Equal(opened, text), err))
	report("Wrapper.Finalize", wrapper.Finalize(ctx))
}
