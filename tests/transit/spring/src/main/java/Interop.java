import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import org.springframework.http.client.SimpleClientHttpRequestFactory;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.vault.VaultException;
import org.springframework.vault.authentication.AppRoleAuthentication;
import org.springframework.vault.authentication.AppRoleAuthenticationOptions;
import org.springframework.vault.authentication.AppRoleAuthenticationOptions.RoleId;
import org.springframework.vault.authentication.AppRoleAuthenticationOptions.SecretId;
import org.springframework.vault.authentication.LifecycleAwareSessionManager;
import org.springframework.vault.client.VaultClients;
import org.springframework.vault.client.VaultEndpoint;
import org.springframework.vault.core.VaultTemplate;
import org.springframework.vault.core.VaultTransitOperations;
import org.springframework.vault.support.Ciphertext;
import org.springframework.vault.support.Plaintext;
import org.springframework.vault.support.Signature;
import org.springframework.vault.support.TransitKeyType;
import org.springframework.vault.support.VaultHmacRequest;
import org.springframework.vault.support.VaultSignRequest;
import org.springframework.vault.support.VaultSignatureVerificationRequest;
import org.springframework.vault.support.VaultTransitContext;
import org.springframework.vault.support.VaultTransitKeyConfiguration;
import org.springframework.vault.support.VaultTransitKeyCreationRequest;

/**
 * Calls each method of VaultTransitOperations, and prints a line for each: its name, and "works" or
 * the reason. Arguments: the address, the role_id, the type of a key that signs. The secret_id is in
 * the environment.
 */
public final class Interop {

  private static final Plaintext TEXT = Plaintext.of("4111 1111 1111 1111");
  private static final Plaintext OTHER = Plaintext.of("another text");

  public static void main(String[] arguments) throws Exception {
    var endpoint = VaultEndpoint.from(URI.create(arguments[0]));
    var requests = new SimpleClientHttpRequestFactory();
    var rest = VaultClients.createRestTemplate(endpoint, requests);
    var options =
        AppRoleAuthenticationOptions.builder()
            .roleId(RoleId.provided(arguments[1]))
            .secretId(SecretId.provided(System.getenv("SECRET_ID")))
            .build();
    var scheduler = new ThreadPoolTaskScheduler();
    scheduler.initialize();
    var sessions =
        new LifecycleAwareSessionManager(
            new AppRoleAuthentication(options, rest), scheduler, rest);
    var vault = new VaultTemplate(endpoint, requests, sessions);
    report("login", () -> !sessions.getSessionToken().getToken().isEmpty());
    report("health", () -> vault.opsForSys().health().isInitialized());
    report("isInitialized", () -> vault.opsForSys().isInitialized());
    report("getUnsealStatus", () -> !vault.opsForSys().getUnsealStatus().isSealed());
    report("getMounts", () -> vault.opsForSys().getMounts().containsKey("transit/"));
    transit(vault, vault.opsForTransit(), arguments[2]);
    sessions.destroy();
    scheduler.shutdown();
  }

  private static void transit(
      VaultTemplate vault, VaultTransitOperations transit, String signingType) {
    var name = "spring-" + UUID.randomUUID();
    var derived = name + "-derived";
    var mac = name + "-mac";
    var signing = name + "-signing";
    report(
        "createKey",
        () -> {
          transit.createKey(name);
          vault.write("transit/keys/" + mac, Map.of("type", "hmac", "key_size", 32));
          transit.createKey(signing, VaultTransitKeyCreationRequest.ofKeyType(signingType));
          transit.createKey(
              derived, VaultTransitKeyCreationRequest.builder().derived(true).build());
          return true;
        });
    report("getKeys", () -> transit.getKeys().containsAll(List.of(name, mac, signing, derived)));
    report(
        "getKey",
        () -> {
          var key = transit.getKey(name);
          return key.getType().equals("aes256-gcm96")
              && key.getLatestVersion() == 1
              && key.supportsEncryption()
              && !key.supportsSigning()
              && key.getKeys().containsKey("1");
        });
    report("getKey of an unknown name", () -> transit.getKey(name + "-unknown") == null);
    var old = transit.encrypt(name, TEXT);
    report("encrypt", () -> old.getCiphertext().startsWith("vault:v1:"));
    report("decrypt", () -> transit.decrypt(name, old).equals(TEXT));
    report(
        "encrypt with a context",
        () -> {
          var context = VaultTransitContext.fromContext("tenant 7".getBytes(StandardCharsets.UTF_8));
          var made = transit.encrypt(derived, TEXT.getPlaintext(), context);
          return TEXT.equals(Plaintext.of(transit.decrypt(derived, made, context)));
        });
    report(
        "encrypt in a batch",
        () -> {
          var made = transit.encrypt(name, List.of(TEXT, OTHER));
          var both = made.stream().map(result -> result.get()).toList();
          var opened = transit.decrypt(name, both);
          return opened.get(0).get().equals(TEXT) && opened.get(1).get().equals(OTHER);
        });
    report(
        "decrypt in a batch that fails in part",
        () -> {
          var bad = Ciphertext.of("vault:v1:" + "A".repeat(80));
          try {
            transit.decrypt(name, List.of(old, bad));
            return false;
          } catch (VaultException error) {
            return error.getMessage().contains("cipher: message authentication failed");
          }
        });
    report(
        "rotate",
        () -> {
          transit.rotate(name);
          return transit.getKey(name).getLatestVersion() == 2;
        });
    report(
        "rewrap",
        () -> {
          var made = transit.rewrap(name, old.getCiphertext());
          var results = transit.rewrap(name, List.of(old));
          return made.startsWith("vault:v2:")
              && transit.decrypt(name, Ciphertext.of(made)).equals(TEXT)
              && transit.decrypt(name, results.get(0).get()).equals(TEXT);
        });
    report(
        "getHmac",
        () -> {
          var made = transit.getHmac(mac, TEXT);
          var named = transit.getHmac(mac, VaultHmacRequest.builder().plaintext(TEXT).build());
          var right = VaultSignatureVerificationRequest.create(TEXT, made);
          var wrong = VaultSignatureVerificationRequest.create(OTHER, named);
          return transit.verify(mac, right).isValid() && !transit.verify(mac, wrong).isValid();
        });
    report(
        "sign",
        () -> {
          Signature made = transit.sign(signing, TEXT);
          Signature named = transit.sign(signing, VaultSignRequest.create(TEXT));
          return transit.verify(signing, TEXT, made)
              && transit.verify(signing, TEXT, named)
              && !transit.verify(signing, OTHER, made);
        });
    report("exportKey", () -> transit.exportKey(name, TransitKeyType.ENCRYPTION_KEY) != null);
    report(
        "configureKey",
        () -> {
          transit.configureKey(
              name,
              VaultTransitKeyConfiguration.builder()
                  .minDecryptionVersion(2)
                  .deletionAllowed(true)
                  .build());
          var key = transit.getKey(name);
          return key.getMinDecryptionVersion() == 2 && key.isDeletionAllowed();
        });
    report(
        "deleteKey",
        () -> {
          transit.deleteKey(name);
          return transit.getKey(name) == null;
        });
  }

  private static void report(String name, Callable<Boolean> step) {
    String result;
    try {
      result = step.call() ? "works" : "does something else";
    } catch (VaultException error) {
      result = "refused: " + error.getMessage();
    } catch (Exception error) {
      result = "failed: " + error;
    }
    System.out.println(name + "\t" + result.replace('\n', ' '));
  }
}
