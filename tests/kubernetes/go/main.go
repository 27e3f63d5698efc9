// Runs the code with which kube-apiserver encrypts what it stores in etcd, against a KMS plugin.
// Each line of the standard input is a command; each has one line of JSON as its result.
//
//	start FILE          become an API server with this EncryptionConfiguration, with empty caches
//	write TEXT          encrypt a secret with this text; the result is base64
//	read BASE64         decrypt a secret
//	many COUNT BASE64   decrypt a secret COUNT times at once at API servers with empty caches
//	health              the health check, as /healthz/kms-providers makes it
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	kmsservice "k8s.io/kms/pkg/service"
)

var place = value.DefaultContext("/registry/secrets/default/card")

type result struct {
	Data  string         `json:"data,omitempty"`
	Text  string         `json:"text,omitempty"`
	Stale bool           `json:"stale,omitempty"`
	KeyID string         `json:"key_id,omitempty"`
	Sizes map[string]int `json:"sizes,omitempty"`
	Max   float64        `json:"max_seconds,omitempty"`
	All   float64        `json:"all_seconds,omitempty"`
	Error string         `json:"error,omitempty"`
}

type server struct {
	file    string
	cancel  context.CancelFunc
	secrets value.Transformer
	checks  []healthz.HealthChecker
}

func (s *server) start(file string) error {
	if s.cancel != nil {
		s.cancel()
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.file = file
	config, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "interop")
	if err != nil {
		return err
	}
	s.secrets = config.Transformers[schema.GroupResource{Resource: "secrets"}]
	s.checks = config.HealthChecks
	return nil
}

func (s *server) write(text string) (result, error) {
	data, err := s.secrets.TransformToStorage(context.Background(), []byte(text), place)
	if err != nil {
		return result{}, err
	}
	object, err := stored(data)
	if err != nil {
		return result{}, err
	}
	sizes := map[string]int{"ciphertext": len(object.EncryptedDEKSource), "key_id": len(object.KeyID)}
	for name, annotation := range object.Annotations {
		sizes[name] = len(annotation)
	}
	return result{Data: base64.StdEncoding.EncodeToString(data), KeyID: object.KeyID, Sizes: sizes}, nil
}

// stored returns the envelope of a stored secret, which follows the prefix k8s:enc:kms:v2:NAME:.
func stored(data []byte) (*kmstypes.EncryptedObject, error) {
	parts := strings.SplitN(string(data), ":", 6)
	if len(parts) != 6 {
		return nil, errors.New("no prefix")
	}
	object := &kmstypes.EncryptedObject{}
	return object, proto.Unmarshal([]byte(parts[5]), object)
}

func (s *server) read(encoded string) (result, error) {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return result{}, err
	}
	plain, stale, err := s.secrets.TransformFromStorage(context.Background(), data, place)
	return result{Text: string(plain), Stale: stale}, err
}

// many decrypts the key of a secret by as many calls at once as an API server makes when it starts
// with a large etcd. Each call has the API server's own client and timeout.
func (s *server) many(count int, encoded, endpoint string) (result, error) {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return result{}, err
	}
	object, err := stored(data)
	if err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	service, err := kmsv2.NewGRPCService(ctx, endpoint, "interop", 3*time.Second)
	if err != nil {
		return result{}, err
	}
	var waiting sync.WaitGroup
	seconds, failures := make([]float64, count), make([]error, count)
	began := time.Now()
	for at := range count {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			_, failures[at] = service.Decrypt(ctx, fmt.Sprint(at), &kmsservice.DecryptRequest{
				Ciphertext: object.EncryptedDEKSource, KeyID: object.KeyID, Annotations: object.Annotations,
			})
			seconds[at] = time.Since(began).Seconds()
		}()
	}
	waiting.Wait()
	found := result{All: time.Since(began).Seconds()}
	for _, each := range seconds {
		found.Max = max(found.Max, each)
	}
	return found, errors.Join(failures...)
}

func (s *server) health() (result, error) {
	request, err := http.NewRequest(http.MethodGet, "/healthz", nil)
	if err != nil {
		return result{}, err
	}
	for _, check := range s.checks {
		if err := check.Check(request); err != nil {
			return result{}, err
		}
	}
	return result{Text: "ok"}, nil
}

func (s *server) run(line string) (result, error) {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "start":
		return result{}, s.start(rest)
	case "write":
		return s.write(rest)
	case "read":
		return s.read(rest)
	case "health":
		return s.health()
	case "many":
		var count int
		var encoded, endpoint string
		if _, err := fmt.Sscan(rest, &count, &endpoint, &encoded); err != nil {
			return result{}, err
		}
		return s.many(count, encoded, endpoint)
	}
	return result{}, fmt.Errorf("unknown command %q", command)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	output := json.NewEncoder(os.Stdout)
	var api server
	for lines.Scan() {
		found, err := api.run(lines.Text())
		if err != nil {
			found.Error = err.Error()
		}
		if err := output.Encode(found); err != nil {
			panic(err)
		}
	}
}
