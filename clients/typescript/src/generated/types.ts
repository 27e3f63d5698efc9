// Generated from the API's description: make typescript writes it.
// SHA-256 of the description: 37941f69d1ff306fd3cb27b83e87a9244954df14c46a4ff68efc60c04a0d4090

export interface components {
    schemas: {
        /** @enum {unknown} */
        Algorithm: "Composite-ML-DSA" | "Dilithium3" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "HMAC-SHA-256" | "HMAC-SHA-512" | "Kyber768" | "ML-DSA-65" | "ML-DSA-87" | "ML-KEM-1024" | "ML-KEM-768" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "X-Wing" | "XAES-256-GCM";
        ApiKeyData: {
            allowed_addresses?: string[] | null;
            /** Format: date-time */
            created_at: string;
            expires_at?: string | null;
            key_last4: string;
            last_used_at?: string | null;
            last_used_from?: string | null;
            name?: string | null;
            overlap_ends_at?: string | null;
            revoked_at: string | null;
            scopes?: components["schemas"]["ScopeData"][] | null;
            status: components["schemas"]["ApiKeyStatus"];
            version: number;
        };
        ApiKeysData: {
            api_keys: components["schemas"]["ApiKeyData"][];
            max_overlap_seconds?: number;
            total: number;
        };
        /** @enum {unknown} */
        ApiKeyStatus: "active" | "revoked";
        AuditKeyData: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            public_key: Uint8Array;
        };
        AuditKeysData: {
            keys: components["schemas"]["AuditKeyData"][];
            log_id: string;
            logs?: string[];
            note_key: string | null;
        };
        BackupsData: {
            age_seconds: number | null;
            last_at: string | null;
            last_number: string | null;
        };
        BusyApiKeyData: {
            name: string | null;
            requests: number;
            version: number;
        };
        CampaignData: {
            /** Format: date-time */
            changed_at: string;
            /** Format: date-time */
            created_at: string;
            created_by: string;
            description: string;
            name: string;
            quiet_days: number;
            sources: components["schemas"]["SourceData"][];
            state: components["schemas"]["CampaignState"];
            target: components["schemas"]["TargetData"];
        };
        CampaignList: {
            campaigns: components["schemas"]["CampaignData"][];
            total: number;
        };
        CampaignProgress: {
            canary: components["schemas"]["CanaryData"];
            /** Format: date-time */
            changed_at: string;
            /** Format: date-time */
            created_at: string;
            created_by: string;
            description: string;
            left: components["schemas"]["Left"];
            moved: components["schemas"]["Moved"];
            name: string;
            quiet: components["schemas"]["Quiet"];
            quiet_days: number;
            sources: components["schemas"]["SourceData"][];
            state: components["schemas"]["CampaignState"];
            target: components["schemas"]["TargetData"];
        };
        /** @enum {unknown} */
        CampaignState: "closed" | "open";
        CanaryData: {
            /** Format: date-time */
            as_of: string;
            begun_by: string | null;
            complete: boolean;
            disabled: components["schemas"]["SourceData"][];
            ended_at: string | null;
            knowledge: components["schemas"]["Knowledge"];
            refused: components["schemas"]["RefusedData"][];
            since: string | null;
            state: components["schemas"]["CanaryState"];
            until: string | null;
        };
        /** @enum {unknown} */
        CanaryState: "ended" | "none" | "running";
        Cbom: {
            cbom: Record<string, never>;
            next?: string;
            spec_version: components["schemas"]["SpecVersion"];
        };
        CertificateData: {
            /** Format: date-time */
            expires_at: string;
            name: string;
        };
        CheckpointData: {
            algorithm: components["schemas"]["Algorithm"];
            /** Format: date-time */
            at: string;
            cosignatures?: components["schemas"]["CosignatureData"][];
            key_version: number;
            log_id: string;
            root: Uint8Array;
            signature: Uint8Array;
            size: number;
        };
        CheckpointsData: {
            checkpoints: components["schemas"]["CheckpointData"][];
        };
        ComputedMac: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            mac: Uint8Array;
        };
        ComputeMacBatch: {
            results: components["schemas"]["ComputeMacItem"][];
        };
        ComputeMacItem: {
            data?: components["schemas"]["ComputedMac"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        ConsistencyData: {
            first: number;
            path: Uint8Array[];
            second: number;
        };
        /** @enum {unknown} */
        ContractStatus: "active" | "ended" | "unpaid";
        CosignatureData: {
            /** Format: date-time */
            at: string;
            origin: string;
            signature: Uint8Array;
            witness: string;
        };
        CountData: {
            count: number;
            value: string;
        };
        CountedLogData: {
            /** Format: date-time */
            at: string;
            log_id: string;
            root: Uint8Array;
            size: number;
        };
        CountsData: {
            counts: components["schemas"]["CountData"][];
            next: number | string | null;
            total: number;
            values: number;
        };
        CurrentSubscriptionData: {
            cancel_at_period_end: boolean;
            operations_per_month: number | null;
            operations_used: number | null;
            period_end: string | null;
            period_start: string | null;
            plan: components["schemas"]["Plan"];
            status: components["schemas"]["ContractStatus"];
            tier: components["schemas"]["Tier"];
        };
        DataKey: {
            algorithm: components["schemas"]["Algorithm"];
            ciphertext?: Uint8Array;
            envelope?: string;
            key_version: number;
            keyring?: string;
            plaintext?: Uint8Array;
            wrapped_key?: Uint8Array;
        };
        DecapsulateBatch: {
            results: components["schemas"]["DecapsulateItem"][];
        };
        Decapsulated: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            shared_secret: Uint8Array;
        };
        DecapsulateItem: {
            data?: components["schemas"]["Decapsulated"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        DecryptBatch: {
            results: components["schemas"]["DecryptItem"][];
        };
        Decrypted: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            plaintext: Uint8Array;
        };
        DecryptItem: {
            data?: components["schemas"]["Decrypted"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        DeliveriesData: {
            deliveries: components["schemas"]["DeliveryData"][];
            next?: string;
            total: number;
        };
        DeliveryData: {
            attempted_at: string | null;
            attempts: number;
            /** Format: date-time */
            created_at: string;
            /** Format: uuid */
            id: string;
            next_attempt_at: string | null;
            problem: components["schemas"]["Problem"] | null;
            state: components["schemas"]["DeliveryState"];
            status: number | null;
            type: string;
        };
        /** @enum {unknown} */
        DeliveryState: "delivered" | "failed" | "waiting";
        EncapsulateBatch: {
            results: components["schemas"]["EncapsulateItem"][];
        };
        Encapsulated: {
            algorithm: components["schemas"]["Algorithm"];
            kem_ciphertext: Uint8Array;
            key_version?: number;
            keyring?: string;
            shared_secret: Uint8Array;
        };
        EncapsulateItem: {
            data?: components["schemas"]["Encapsulated"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        EncryptBatch: {
            results: components["schemas"]["EncryptItem"][];
        };
        Encrypted: {
            algorithm: components["schemas"]["Algorithm"];
            ciphertext?: Uint8Array;
            envelope?: string;
            key_version?: number;
            keyring?: string;
        };
        EncryptItem: {
            data?: components["schemas"]["Encrypted"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        ExceptionData: {
            api_key: number;
            /** Format: date-time */
            until: string;
        };
        ExchangedToken: {
            access_token: string;
            /** Format: date-time */
            expires_at: string;
            expires_in: number;
            /** @enum {unknown} */
            issued_token_type: "urn:ietf:params:oauth:token-type:access_token";
            scopes: components["schemas"]["ScopeData"][];
            /** @enum {unknown} */
            token_type: "N_A";
        };
        ExternalKeyData: {
            algorithm: string;
            /** @enum {unknown} */
            kind: "certificate" | "key" | "private-key" | "public-key" | "secret-key";
            moved: boolean;
            name: string;
            owner: string;
            place: string;
            state: string;
            successor: string;
        };
        ExternalKeys: {
            document_sha256: string;
            /** Format: date-time */
            imported_at: string;
            imported_by: string;
            keys: components["schemas"]["ExternalKeyData"][];
            list_sha256: string;
            moved: number;
            source: string;
            total: number;
        };
        ExternalSource: {
            document_sha256: string;
            /** Format: date-time */
            imported_at: string;
            imported_by: string;
            list_sha256: string;
            moved: number;
            source: string;
            total: number;
        };
        ExternalSources: {
            moved: number;
            sources: components["schemas"]["ExternalSource"][];
            total: number;
        };
        Fault: {
            challenge_token?: string;
            error_code: string;
            field?: string;
            message: string;
            second_factor?: string;
        };
        FormattedPublicKey: {
            algorithm: components["schemas"]["Algorithm"];
            format: components["schemas"]["PublicKeyFormat"];
            key_version: number;
            keyring?: string;
            public_key: string | components["schemas"]["Jwk"];
        };
        FoundData: {
            detail?: string;
            id: string;
            kind: components["schemas"]["FoundKind"];
            name: string;
        };
        /** @enum {unknown} */
        FoundKind: "api-key" | "keyring" | "member" | "record" | "tenant";
        GenerateDataKeyBatch: {
            results: components["schemas"]["GenerateDataKeyItem"][];
        };
        GenerateDataKeyItem: {
            data?: components["schemas"]["DataKey"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        /** @enum {unknown} */
        GivenKeyAlgorithm: "ES256" | "EdDSA" | "ML-DSA-44" | "ML-DSA-65" | "ML-DSA-87" | "PS256" | "RS256";
        /** @enum {unknown} */
        HashAlgorithm: "SHA-256" | "SHA-384" | "SHA-512";
        HashedData: {
            hash: Uint8Array;
            hash_algorithm: components["schemas"]["HashFunction"];
        };
        /** @enum {unknown} */
        HashFunction: "SHA-224" | "SHA-256" | "SHA-384" | "SHA-512" | "SHA3-224" | "SHA3-256" | "SHA3-384" | "SHA3-512";
        Health: {
            /** @enum {unknown} */
            status: "ok";
        };
        ImportKey: {
            algorithm: components["schemas"]["Algorithm"];
            /** Format: date-time */
            expires_at: string;
            import_key_id: string;
            info: Uint8Array;
            keyring?: string;
            public_key: Uint8Array;
            /** @enum {unknown} */
            suite: "ML-KEM-1024, HKDF-SHA-384, AES-256-GCM";
        };
        InstallationData: {
            backups: components["schemas"]["BackupsData"];
            certificates: components["schemas"]["CertificateData"][];
            log: components["schemas"]["LogData"];
            mail: components["schemas"]["MailData"];
            operators: components["schemas"]["NamedOperatorData"][] | null;
            parts: components["schemas"]["PartData"][];
            root_key: components["schemas"]["RootKeyData"] | null;
            shards: components["schemas"]["ShardData"][];
            tenants: components["schemas"]["TenantCountsData"] | null;
            version: string;
        };
        InventoryData: {
            as_of: components["schemas"]["CountedLogData"];
            external: components["schemas"]["ExternalSources"];
            keys: components["schemas"]["InventoryKeyData"][];
            merged_principals: boolean;
            next?: string;
            not_seen: string[];
            /** Format: date-time */
            since?: string;
            total: number;
            unattributed: components["schemas"]["UnattributedUsesData"][];
        };
        InventoryKeyData: {
            age_days: number;
            algorithm: components["schemas"]["Algorithm"];
            /** Format: date-time */
            archive_at?: string;
            /** Format: date */
            confidential_until?: string;
            /** Format: date-time */
            created_at: string;
            data_class?: string;
            /** Format: date-time */
            disabled_until?: string;
            fingerprint: string;
            first_used_at: string | null;
            imported: boolean;
            key_version: number;
            keyring: string;
            /** @enum {unknown} */
            keyring_deleted?: true;
            last_used_at: string | null;
            may_use?: components["schemas"]["MayUseData"] | null;
            more_principals: boolean;
            operations: components["schemas"]["OperationUsesData"][];
            owner?: string;
            principals: components["schemas"]["PrincipalUsesData"][];
            /** @enum {unknown} */
            private_key: "destroyed" | "present";
            /** Format: date-time */
            retired_at?: string;
            retired_days?: number;
            /** Format: date-time */
            rotation_at?: string;
            rules: components["schemas"]["RuleAssessment"][] | null;
            standard: string;
            status: components["schemas"]["KeyStatus"];
            uses: number;
        };
        InvitationData: {
            email: string;
            /** Format: date-time */
            expires_at: string;
            /** Format: uuid */
            id: string;
            invitation_token?: string;
            role: components["schemas"]["Role"];
        };
        Jwk: {
            alg: string;
            kid: string;
            kty?: string;
            pub: string;
            use?: string;
        };
        JwkSet: {
            keys: components["schemas"]["Jwk"][];
        };
        Key: {
            algorithm: components["schemas"]["Algorithm"];
            /** Format: date-time */
            archive_at?: string;
            /** Format: date-time */
            created_at: string;
            /** Format: date-time */
            disabled_until?: string;
            fingerprint?: string;
            /** @enum {unknown} */
            imported?: true;
            key_version: number;
            keyring?: string;
            /** @enum {unknown} */
            legacy?: true;
            public_key?: Uint8Array;
            status: components["schemas"]["KeyStatus"];
        };
        /** @enum {unknown} */
        KeyPurpose: "decapsulate" | "decrypt" | "encapsulate" | "encrypt" | "mac" | "sign" | "unwrap" | "verify" | "wrap";
        Keyring: {
            archive_after_days: number | null;
            /** Format: date-time */
            archive_at?: string;
            created_at: string | null;
            deletion_allowed: boolean;
            derived: boolean;
            description: string;
            first_version: number;
            labels: {
                [key: string]: string;
            };
            last_used_at?: string | null;
            minimum_decryption_version: number;
            minimum_encryption_version: number;
            name: string;
            purposes: components["schemas"]["KeyPurpose"][];
            retired_public_keys_allowed: boolean;
            rotation_days: number | null;
            transit_type?: string;
        };
        Keyrings: {
            keyrings: components["schemas"]["Keyring"][];
            next?: string;
            total: number;
        };
        Keys: {
            keyring?: string;
            keys: components["schemas"]["Key"][];
            next?: string;
            total: number;
        };
        /** @enum {unknown} */
        KeyStatus: "active" | "archived" | "disabled" | "retired";
        KeyUsage: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            last_used_at: string | null;
            uses: number;
        };
        KeyUsages: {
            keyring?: string;
            next?: string;
            total: number;
            usage: components["schemas"]["KeyUsage"][];
        };
        /** @enum {unknown} */
        Knowledge: "exact" | "observed" | "statement";
        Left: {
            as_of: string | null;
            count: number | null;
            knowledge: components["schemas"]["Knowledge"];
            scans: components["schemas"]["ScanData"][];
            unreadable: number;
        };
        LimitData: {
            limit: number | null;
            name: components["schemas"]["LimitName"];
            used: number | null;
        };
        /** @enum {unknown} */
        LimitName: "api_keys" | "operations_per_month" | "pqc_keys" | "requests_per_minute";
        LimitsData: {
            limits: components["schemas"]["LimitData"][];
        };
        LogData: {
            checkpoint_size: number | null;
            log_id: string | null;
            newest_checkpoint_at: string | null;
            outbox_oldest_at: string | null;
            outbox_waiting: number | null;
            quarantined: number | null;
            size: number | null;
        };
        MailData: {
            failed: number | null;
            mode: components["schemas"]["MailMode"];
            oldest_at: string | null;
            waiting: number | null;
        };
        /** @enum {unknown} */
        MailMode: "disabled" | "folder" | "smtp";
        MayUseData: {
            api_keys: number;
            workload_roles: number;
        };
        MemberData: {
            /** Format: date-time */
            created_at: string;
            email: string;
            /** Format: uuid */
            id: string;
            last_sign_in_at: string | null;
            mfa_enabled: boolean;
            role: components["schemas"]["Role"];
            status: components["schemas"]["MemberStatus"];
        };
        MembersData: {
            members: components["schemas"]["MemberData"][];
            next?: string;
            total: number;
        };
        /** @enum {unknown} */
        MemberStatus: "active" | "must_enroll";
        Moved: {
            /** Format: date-time */
            as_of: string;
            by_version: components["schemas"]["MovedData"][];
            count: number;
            knowledge: components["schemas"]["Knowledge"];
            last_at: string | null;
        };
        MovedData: {
            algorithm: string;
            count: number;
            /** Format: date-time */
            first_at: string;
            key_version: number;
            keyring: string;
            /** Format: date-time */
            last_at: string;
            target_algorithm: string;
            target_key_version: number;
            target_keyring: string;
        };
        NamedOperatorData: {
            /** Format: date-time */
            created_at: string;
            name: string;
        };
        NewApiKeyData: {
            allowed_addresses?: string[] | null;
            api_key: string;
            /** Format: date-time */
            created_at: string;
            expires_at?: string | null;
            key_last4: string;
            name?: string | null;
            scopes?: components["schemas"]["ScopeData"][] | null;
            status: components["schemas"]["ApiKeyStatus"];
            version: number;
        };
        NoticeData: {
            action: string;
            at: string | null;
            closed_at: string | null;
            count: number;
            /** Format: uuid */
            id: string;
            kind: components["schemas"]["NoticeKind"];
            names: string[];
            new: boolean;
            /** Format: date-time */
            opened_at: string;
            path: string;
            /** Format: date-time */
            raised_at: string;
            seen: number;
            seen_by: string[];
            severity: components["schemas"]["Severity"];
            source_address: string | null;
            text: string;
        };
        /** @enum {unknown} */
        NoticeKind: "api-key-expiring" | "api-key-new-network" | "api-key-too-powerful" | "api-key-unused" | "approval-waiting" | "backup-overdue" | "certificate-expiring" | "events-refused" | "events-waiting" | "factor-removed" | "key-destruction" | "key-old" | "key-unused" | "mail-waiting" | "member-without-factor" | "operators-unnamed" | "part-not-ready" | "passkey-copied" | "quota-nearly-used" | "rate-limit-used-up" | "refresh-token-reused" | "refusals-rising" | "root-key-old" | "rule-denies" | "shard-not-ready" | "tenant-deletion" | "webhook-disabled" | "witness-conflict";
        NoticesData: {
            notices: components["schemas"]["NoticeData"][];
            total: number;
            unseen: number;
        };
        NoticeSettingData: {
            days: number | null;
            default_days: number | null;
            enabled: boolean;
            kind: components["schemas"]["NoticeKind"];
            title: string;
        };
        NoticeSettingsData: {
            mail: boolean | null;
            settings: components["schemas"]["NoticeSettingData"][];
        };
        OperationUsesData: {
            /** Format: date-time */
            first_used_at: string;
            /** Format: date-time */
            last_used_at: string;
            operation: string;
            uses: number;
        };
        OperatorData: {
            /** Format: date-time */
            created_at: string;
            last_used_at: string | null;
            last_used_from: string | null;
            name: string;
            role: components["schemas"]["OperatorRole"];
        };
        /** @enum {unknown} */
        OperatorRole: "admin" | "read-only" | "tenant-admin";
        OperatorsData: {
            operators: components["schemas"]["OperatorData"][];
            total: number;
        };
        OperatorSessionData: {
            /** Format: date-time */
            created_at: string;
            current: boolean;
            email: string | null;
            /** Format: date-time */
            expires_at: string;
            /** Format: uuid */
            id: string;
            /** Format: date-time */
            last_seen_at: string;
            principal: string;
            role: components["schemas"]["OperatorRole"];
            source_address: string;
        };
        OperatorSessionsData: {
            sessions: components["schemas"]["OperatorSessionData"][];
            total: number;
        };
        OwnApiKey: {
            allowed_addresses: string[] | null;
            expires_at: string | null;
            name: string | null;
            rotated: boolean;
            scopes: components["schemas"]["ScopeData"][] | null;
            /** Format: uuid */
            tenant_id: string;
            version: number;
        };
        OwnOperatorData: {
            email: string | null;
            name: string | null;
            principal: string;
            provider: string | null;
            role: components["schemas"]["OperatorRole"];
        };
        PartData: {
            name: string;
            ready: boolean;
            reason: string | null;
        };
        PendingInvitationData: {
            email: string;
            /** Format: date-time */
            expires_at: string;
            /** Format: uuid */
            id: string;
            role: components["schemas"]["Role"];
        };
        PendingInvitationsData: {
            invitations: components["schemas"]["PendingInvitationData"][];
            next?: string;
            total: number;
        };
        /** @enum {unknown} */
        Period: "24h" | "30d";
        /** @enum {unknown} */
        Plan: "enterprise" | "enterprise_plus" | "free" | "professional" | "starter";
        PreviewData: {
            incomplete: boolean;
            refused: components["schemas"]["PreviewedUseData"][];
            /** Format: date-time */
            since: string;
        };
        PreviewedUseData: {
            algorithm: components["schemas"]["Algorithm"];
            /** Format: date-time */
            first_used_at: string;
            keyring: string | null;
            /** Format: date-time */
            last_used_at: string;
            operation: string;
            principal: string;
            rule: string;
            uses: number;
        };
        PrincipalUsesData: {
            /** Format: date-time */
            first_used_at: string;
            /** Format: date-time */
            last_used_at: string;
            operation: string;
            principal: string;
            uses: number;
        };
        /** @enum {unknown} */
        Problem: "connection-failed" | "expired" | "no-http-response" | "no-public-address" | "timeout" | "tls-failed" | "webhook-disabled";
        /** @enum {unknown} */
        Profile: "cnsa-2.0" | "eu-hybrid";
        ProfileData: {
            description: string;
            name: components["schemas"]["Profile"];
            rules: components["schemas"]["ProfileRuleData"][];
        };
        ProfileRuleData: {
            algorithms: components["schemas"]["Algorithm"][];
            name: string;
            successor: components["schemas"]["Algorithm"] | null;
            uses: components["schemas"]["RuleUse"][];
        };
        ProfilesData: {
            profiles: components["schemas"]["ProfileData"][];
        };
        ProofData: {
            checkpoint: components["schemas"]["CheckpointData"];
            leaf_index: number;
            path: Uint8Array[];
            record: components["schemas"]["RecordData"];
            size: number;
        };
        /** @enum {unknown} */
        PublicKeyFormat: "age" | "der" | "jwk" | "pem" | "raw";
        Quiet: {
            /** Format: date-time */
            as_of: string;
            is_quiet: boolean;
            knowledge: components["schemas"]["Knowledge"];
            last_used_at: string | null;
        };
        RandomData: {
            random: Uint8Array;
        };
        RecordData: {
            algorithm: string | null;
            campaign: string | null;
            event_id: string | null;
            format: number;
            happened_at: string | null;
            id: number;
            key_version: number | null;
            keyring: string | null;
            keyring_revision: number | null;
            nonce: string;
            number: number;
            operation: string;
            outcome: string;
            policy: string;
            principal: string;
            public_key_sha256: string | null;
            /** Format: date-time */
            recorded_at: string;
            request_id: string;
            rule: string | null;
            source_address: string;
            target: string | null;
            tenant_id: string;
        };
        RecordsData: {
            logs?: string[];
            next: number | string | null;
            records: components["schemas"]["RecordData"][];
        };
        ReEncryptBatch: {
            results: components["schemas"]["ReEncryptItem"][];
        };
        ReEncrypted: {
            algorithm: components["schemas"]["Algorithm"];
            ciphertext?: Uint8Array;
            envelope?: string;
            key_version: number;
            keyring: string;
            moved: boolean;
            wrapped_key?: Uint8Array;
        };
        ReEncryptItem: {
            data?: components["schemas"]["ReEncrypted"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        RefusedData: {
            algorithm: string;
            count: number;
            key_version: number | null;
            keyring: string;
            /** Format: date-time */
            last_at: string;
            principal: string;
        };
        RemovedData: {
            removed: boolean;
        };
        RemovedWorkload: {
            removed: boolean;
        };
        /** @enum {unknown} */
        Role: "admin" | "developer" | "owner" | "viewer";
        RootKeyData: {
            /** Format: date-time */
            created_at: string;
            id: number;
            rotation: components["schemas"]["RotationData"] | null;
        };
        RotatedApiKey: {
            new_key: components["schemas"]["NewApiKeyData"];
            revoked_version: number | null;
        };
        RotatedKey: {
            algorithm: components["schemas"]["Algorithm"];
            fingerprint?: string;
            key_version: number;
            keyring?: string;
            old_key_version: number;
            public_key?: Uint8Array;
        };
        RotationData: {
            done: number;
            remaining: number;
        };
        RuleAssessment: {
            confidential_longer: boolean;
            deny_from: string | null;
            rule: string;
            /** @enum {unknown} */
            state: "announced" | "denies" | "warns";
            successor: components["schemas"]["Algorithm"] | null;
            uses: components["schemas"]["RuleUse"][];
            warn_from: string | null;
        };
        RuleData: {
            algorithms: components["schemas"]["Algorithm"][];
            deny_from: string | null;
            exceptions: components["schemas"]["ExceptionData"][];
            keyrings: string[];
            name: string;
            successor: components["schemas"]["Algorithm"] | null;
            uses: components["schemas"]["RuleUse"][];
            warn_from: string | null;
        };
        RulesData: {
            revision: number;
            rules: components["schemas"]["RuleData"][];
            sha256: string;
        };
        /** @enum {unknown} */
        RuleUse: "compute-mac" | "encapsulate" | "encrypt" | "generate-data-key" | "generate-key" | "sign" | "sign-hash-sha-256" | "sign-hash-sha-384" | "sign-hash-sha-512" | "wrap";
        RuleWarning: {
            /** Format: date-time */
            deprecation: string;
            rule: string;
            successor?: components["schemas"]["Algorithm"];
            /** Format: date-time */
            sunset?: string;
        };
        ScanData: {
            left: number;
            other: number;
            place: string;
            principal: string;
            /** Format: date-time */
            recorded_at: string;
            /** Format: date-time */
            scanned_at: string;
            sha256: string;
            unreadable: number;
        };
        ScopeData: {
            algorithms?: components["schemas"]["Algorithm"][];
            keyrings?: string[];
            operations?: string[];
        };
        SearchData: {
            results: components["schemas"]["FoundData"][];
            unavailable: components["schemas"]["FoundKind"][];
        };
        /** @enum {unknown} */
        Severity: "danger" | "info" | "warning";
        ShardData: {
            draining: boolean | null;
            last_backup_at: string | null;
            log_id: string | null;
            log_size: number | null;
            moving: number | null;
            name: string;
            newest_checkpoint_at: string | null;
            ready: boolean;
            reason: string | null;
            root_key: number | null;
            tenants: number | null;
            unsigned: number | null;
        };
        SignBatch: {
            results: components["schemas"]["SignItem"][];
        };
        Signed: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            signature: Uint8Array;
        };
        SignedCbom: {
            jws: string;
            next?: string;
            spec_version: components["schemas"]["SpecVersion"];
        };
        SignedHash: {
            algorithm: components["schemas"]["Algorithm"];
            hash_algorithm: components["schemas"]["HashAlgorithm"];
            key_version: number;
            keyring?: string;
            signature: Uint8Array;
            /** @enum {unknown} */
            signature_type: "detached";
        };
        SignedJws: {
            algorithm: components["schemas"]["Algorithm"];
            jws: string;
            key_version: number;
            keyring?: string;
        };
        SignedOutData: {
            signed_out: boolean;
        };
        SignHashBatch: {
            results: components["schemas"]["SignHashItem"][];
        };
        SignHashItem: {
            data?: components["schemas"]["SignedHash"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        SignItem: {
            data?: components["schemas"]["Signed"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        SignMuBatch: {
            results: components["schemas"]["SignMuItem"][];
        };
        SignMuItem: {
            data?: components["schemas"]["Signed"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        SourceData: {
            algorithm: string;
            key_versions: number[] | null;
            keyring: string;
        };
        /** @enum {unknown} */
        SpecVersion: "1.6" | "1.7";
        /** @enum {unknown} */
        Subscription: "active" | "ended";
        TargetData: {
            algorithm: string;
            keyring: string;
        };
        TenantCountsData: {
            scheduled_for_deletion: number;
            suspended: number;
            total: number;
        };
        TenantData: {
            /** Format: date-time */
            created_at: string;
            /** Format: date-time */
            deletion_at?: string;
            /** Format: uuid */
            id: string;
            name: string;
            plan: components["schemas"]["Plan"];
            requests_per_minute?: number | null;
            status: components["schemas"]["TenantStatus"];
            subscription?: components["schemas"]["Subscription"];
            tier?: components["schemas"]["Tier"];
            /** Format: date-time */
            updated_at: string;
        };
        TenantsData: {
            next?: string;
            tenants: components["schemas"]["TenantData"][];
            total: number;
        };
        /** @enum {unknown} */
        TenantStatus: "active" | "deleted" | "deleting" | "suspended";
        /** @enum {unknown} */
        Tier: "enterprise" | "enterprise_plus" | "free" | "growth" | "professional" | "starter";
        UnattributedUsesData: {
            algorithm: components["schemas"]["Algorithm"];
            /** Format: date-time */
            first_used_at: string;
            /** Format: date-time */
            last_used_at: string;
            operation: string;
            uses: number;
        };
        UnwrapBatch: {
            results: components["schemas"]["UnwrapItem"][];
        };
        UnwrapItem: {
            data?: components["schemas"]["Unwrapped"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        Unwrapped: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            symmetric_key: Uint8Array;
        };
        UsageBucketData: {
            operations: {
                [key: string]: number;
            };
            refused: number;
            /** Format: date-time */
            start: string;
            succeeded: number;
        };
        UsageData: {
            buckets: components["schemas"]["UsageBucketData"][];
            busiest_api_keys?: components["schemas"]["BusyApiKeyData"][];
            operations_per_month: number | null;
            operations_used: number | null;
            period: components["schemas"]["Period"];
            requests_per_minute: number | null;
            total: number;
        };
        UsesData: {
            as_of: components["schemas"]["CountedLogData"];
            next?: string;
            /** Format: date-time */
            since?: string;
            uses: components["schemas"]["PrincipalUsesData"][];
        };
        Verified: {
            algorithm: components["schemas"]["Algorithm"];
            key_version?: number;
            keyring?: string;
            valid: boolean;
        };
        VerifiedHash: {
            algorithm: components["schemas"]["Algorithm"];
            hash_algorithm: components["schemas"]["HashAlgorithm"];
            key_version?: number;
            keyring?: string;
            valid: boolean;
        };
        VerifiedMac: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            valid: boolean;
        };
        VerifyBatch: {
            results: components["schemas"]["VerifyItem"][];
        };
        VerifyHashBatch: {
            results: components["schemas"]["VerifyHashItem"][];
        };
        VerifyHashItem: {
            data?: components["schemas"]["VerifiedHash"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        VerifyItem: {
            data?: components["schemas"]["Verified"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        VerifyMacBatch: {
            results: components["schemas"]["VerifyMacItem"][];
        };
        VerifyMacItem: {
            data?: components["schemas"]["VerifiedMac"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        VerifyMuBatch: {
            results: components["schemas"]["VerifyMuItem"][];
        };
        VerifyMuItem: {
            data?: components["schemas"]["Verified"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        WebhookData: {
            /** Format: date-time */
            created_at: string;
            created_by: string;
            failing_since: string | null;
            /** Format: uuid */
            id: string;
            kinds: string[];
            last_success_at: string | null;
            name: string;
            previous_secret_until: string | null;
            state: components["schemas"]["WebhookState"];
            url: string;
        };
        WebhooksData: {
            webhooks: components["schemas"]["WebhookData"][];
        };
        /** @enum {unknown} */
        WebhookState: "active" | "disabled";
        WitnessData: {
            at: string | null;
            name: string;
            origin: string;
            problem: components["schemas"]["WitnessProblem"] | null;
            size: number | null;
        };
        WitnessesData: {
            witnesses: components["schemas"]["WitnessData"][];
        };
        /** @enum {unknown} */
        WitnessProblem: "bad-response" | "conflict" | "unknown-key" | "unknown-log" | "unreachable";
        WorkloadIssuerData: {
            algorithms: components["schemas"]["GivenKeyAlgorithm"][];
            audience: string;
            /** Format: date-time */
            changed_at: string;
            changed_by: string;
            issuer: string;
            jwks: string | null;
            name: string;
        };
        WorkloadRoleData: {
            /** Format: date-time */
            changed_at: string;
            changed_by: string;
            claims: {
                [key: string]: string[];
            };
            issuer: string;
            lifetime_seconds: number;
            name: string;
            scopes: components["schemas"]["ScopeData"][];
            valid_keys: number;
        };
        WorkloadsData: {
            issuers: components["schemas"]["WorkloadIssuerData"][];
            roles: components["schemas"]["WorkloadRoleData"][];
        };
        WrapBatch: {
            results: components["schemas"]["WrapItem"][];
        };
        WrapItem: {
            data?: components["schemas"]["Wrapped"];
            error?: components["schemas"]["Fault"];
            reference?: string;
            warning?: components["schemas"]["RuleWarning"];
        };
        Wrapped: {
            algorithm: components["schemas"]["Algorithm"];
            key_version: number;
            keyring?: string;
            wrapped_key: Uint8Array;
            /** @enum {unknown} */
            wrapping_method: "KEM-DEM" | "XAES-256-GCM";
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export interface operations {
    list_audit_checkpoints: {
        parameters: {
            query?: {
                after?: number;
                algorithm?: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521";
                limit?: number;
                log?: string;
                shard?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CheckpointsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_audit_checkpoint: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "SLH-DSA-SHA2-128s") | null;
                    shard?: string | null;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CheckpointData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_audit_note: {
        parameters: {
            query?: {
                log?: string;
                shard?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain; charset=utf-8": string;
                };
            };
        };
    };
    prove_audit_consistency: {
        parameters: {
            query: {
                first: number;
                log?: string;
                second: number;
                shard?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ConsistencyData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    count_audit_records: {
        parameters: {
            query: {
                algorithm?: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521";
                before?: string;
                by: "principal" | "key" | "address" | "outcome" | "operation" | "hour" | "day";
                campaign?: string;
                from?: string;
                key_version?: number;
                keyring?: string;
                limit?: number;
                log?: string;
                operation?: string;
                outcome?: string;
                page_views?: boolean;
                principal?: string;
                request_id?: string;
                rule?: string;
                shard?: string;
                source_address?: string;
                tenant?: string;
                to?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CountsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    export_audit_log: {
        parameters: {
            query?: {
                after?: number;
                algorithm?: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521";
                campaign?: string;
                from?: string;
                key_version?: number;
                keyring?: string;
                log?: string;
                operation?: string;
                outcome?: string;
                page_views?: boolean;
                principal?: string;
                request_id?: string;
                rule?: string;
                shard?: string;
                source_address?: string;
                tenant?: string;
                to?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/jsonl": string;
                };
            };
        };
    };
    list_audit_keys: {
        parameters: {
            query?: {
                log?: string;
                shard?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["AuditKeysData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_audit_records: {
        parameters: {
            query?: {
                after?: string;
                algorithm?: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521";
                before?: string;
                campaign?: string;
                from?: string;
                key_version?: number;
                keyring?: string;
                limit?: number;
                log?: string;
                operation?: string;
                order?: "asc" | "desc";
                outcome?: string;
                page_views?: boolean;
                principal?: string;
                request_id?: string;
                rule?: string;
                shard?: string;
                source_address?: string;
                tenant?: string;
                to?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RecordsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    prove_audit_record: {
        parameters: {
            query?: {
                log?: string;
                shard?: string;
            };
            header?: never;
            path: {
                id: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ProofData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_audit_tlog_proof: {
        parameters: {
            query?: {
                log?: string;
                shard?: string;
            };
            header?: never;
            path: {
                id: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain; charset=utf-8": string;
                };
            };
        };
    };
    list_audit_witnesses: {
        parameters: {
            query?: {
                log?: string;
                shard?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WitnessesData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_own_api_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["OwnApiKey"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    operator_me: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["OwnOperatorData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    exchange_token: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    grant_type: "urn:ietf:params:oauth:grant-type:token-exchange";
                    role: string;
                    subject_token: string;
                    subject_token_type?: ("urn:ietf:params:oauth:token-type:jwt" | "urn:ietf:params:oauth:token-type:id_token" | "urn:ietf:params:oauth:token-type:access_token") | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ExchangedToken"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_limits: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["LimitsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_subscription: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CurrentSubscriptionData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_campaigns: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CampaignList"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_campaign: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CampaignProgress"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    put_campaign: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    description?: string | null;
                    quiet_days?: number | null;
                    replace?: boolean | null;
                    sources: {
                        /** @enum {string} */
                        algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "ML-KEM-768";
                        key_versions?: number[] | null;
                        keyring?: string | null;
                    }[];
                    state?: ("open" | "closed") | null;
                    target: {
                        /** @enum {string} */
                        algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768";
                        keyring?: string | null;
                    };
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CampaignData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    close_campaign: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["CampaignData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    add_campaign_scan: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    counts: {
                        /** @enum {string} */
                        algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "ML-KEM-768";
                        count: number;
                        key_version: number;
                        keyring?: string | null;
                    }[];
                    place: string;
                    /** Format: date-time */
                    scanned_at: string;
                    sha256: string;
                    unreadable?: number | null;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ScanData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_installation: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["InstallationData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_inventory: {
        parameters: {
            query?: {
                access?: boolean;
                after?: string;
                algorithm?: string;
                created_before?: string;
                created_since?: string;
                destruction_before?: string;
                imported?: boolean;
                keyring?: string;
                keyring_deleted?: boolean;
                legacy?: boolean;
                limit?: number;
                name?: string;
                not_keyring?: string;
                not_used_by?: string;
                offset?: number;
                principals?: number;
                rotation_before?: string;
                scheduled?: boolean;
                since?: string;
                sort?: "name" | "-name" | "algorithm" | "-algorithm" | "status" | "-status" | "created" | "-created" | "last-used" | "-last-used" | "uses" | "-uses" | "rotation" | "-rotation" | "destruction" | "-destruction";
                status?: string;
                unused_since?: string;
                used_by?: string;
                used_since?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["InventoryData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_cbom: {
        parameters: {
            query?: {
                after?: string;
                limit?: number;
                uses?: "none" | "counts" | "principals";
                version?: "1.6" | "1.7";
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Cbom"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_cbom: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    after?: string | null;
                    limit?: number | null;
                    signed_by: string;
                    uses?: ("none" | "counts" | "principals") | null;
                    version?: ("1.6" | "1.7") | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SignedCbom"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_external_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ExternalSources"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    import_external_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    document: string;
                    source: string;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ExternalSource"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_external_keys: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                source: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ExternalKeys"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    remove_external_keys: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                source: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ExternalSource"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_uses: {
        parameters: {
            query: {
                after?: string;
                algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521";
                key_version?: number;
                keyring?: string;
                limit?: number;
                since?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["UsesData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    generate_data_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    context?: Uint8Array | null;
                    format?: ("wrapped_key" | "ciphertext" | "envelope") | null;
                    key_version?: number | null;
                    keyring?: string | null;
                    plaintext?: boolean | null;
                    size?: (16 | 32 | 64) | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["DataKey"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    generate_data_key_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    context?: Uint8Array | null;
                    format?: ("wrapped_key" | "ciphertext" | "envelope") | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        context?: Uint8Array | null;
                        format?: ("wrapped_key" | "ciphertext" | "envelope") | null;
                        key_version?: number | null;
                        keyring?: string | null;
                        plaintext?: boolean | null;
                        reference?: string | null;
                        size?: (16 | 32 | 64) | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                    plaintext?: boolean | null;
                    size?: (16 | 32 | 64) | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["GenerateDataKeyBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    decapsulate: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "ML-KEM-768") | null;
                    kem_ciphertext: Uint8Array;
                    key_version: number;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Decapsulated"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    decapsulate_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "ML-KEM-768") | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "ML-KEM-768") | null;
                        kem_ciphertext: Uint8Array;
                        key_version: number;
                        keyring?: string | null;
                        reference?: string | null;
                    }[];
                    kem_ciphertext?: Uint8Array | null;
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["DecapsulateBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    decrypt: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    ciphertext?: Uint8Array;
                    context?: Uint8Array | null;
                    envelope?: string | null;
                    key_version?: number;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Decrypted"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    decrypt_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    context?: Uint8Array | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        ciphertext?: Uint8Array;
                        context?: Uint8Array | null;
                        envelope?: string | null;
                        key_version?: number;
                        keyring?: string | null;
                        reference?: string | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["DecryptBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    encapsulate: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "ML-KEM-768") | null;
                    key_version?: number;
                    keyring?: string | null;
                    public_key?: (string | Record<string, never>) | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Encapsulated"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    encapsulate_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "ML-KEM-768") | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "ML-KEM-768") | null;
                        key_version?: number;
                        keyring?: string | null;
                        public_key?: (string | Record<string, never>) | null;
                        reference?: string | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["EncapsulateBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    encrypt: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    context?: Uint8Array | null;
                    format?: ("ciphertext" | "envelope") | null;
                    key_version?: number | null;
                    keyring?: string | null;
                    mode?: ("standard" | "deterministic") | null;
                    plaintext: Uint8Array;
                    public_key?: (string | Record<string, never>) | null;
                    salt?: Uint8Array | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Encrypted"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    encrypt_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    context?: Uint8Array | null;
                    format?: ("ciphertext" | "envelope") | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        context?: Uint8Array | null;
                        format?: ("ciphertext" | "envelope") | null;
                        key_version?: number | null;
                        keyring?: string | null;
                        mode?: ("standard" | "deterministic") | null;
                        plaintext: Uint8Array;
                        public_key?: (string | Record<string, never>) | null;
                        reference?: string | null;
                        salt?: Uint8Array | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                    mode?: ("standard" | "deterministic") | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["EncryptBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    unwrap: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    key_version: number;
                    keyring?: string | null;
                    wrapped_key: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Unwrapped"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    unwrap_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        key_version: number;
                        keyring?: string | null;
                        reference?: string | null;
                        wrapped_key: Uint8Array;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["UnwrapBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    wrap: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    key_version: number;
                    keyring?: string | null;
                    symmetric_key: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Wrapped"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    wrap_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        key_version: number;
                        keyring?: string | null;
                        reference?: string | null;
                        symmetric_key: Uint8Array;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                    symmetric_key?: Uint8Array | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WrapBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    re_encrypt: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    campaign?: string | null;
                    ciphertext?: Uint8Array;
                    context?: Uint8Array | null;
                    envelope?: string | null;
                    key_version?: number;
                    keyring?: string | null;
                    to?: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        context?: Uint8Array | null;
                        format?: ("ciphertext" | "envelope") | null;
                        keyring?: string | null;
                    } | null;
                    wrapped_key?: Uint8Array | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ReEncrypted"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    re_encrypt_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "ML-KEM-768") | null;
                    campaign?: string | null;
                    context?: Uint8Array | null;
                    items: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        campaign?: string | null;
                        ciphertext?: Uint8Array;
                        context?: Uint8Array | null;
                        envelope?: string | null;
                        key_version?: number;
                        keyring?: string | null;
                        reference?: string | null;
                        to?: {
                            algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                            associated_data?: Uint8Array | null;
                            context?: Uint8Array | null;
                            format?: ("ciphertext" | "envelope") | null;
                            keyring?: string | null;
                        } | null;
                        wrapped_key?: Uint8Array | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                    to?: {
                        algorithm?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "XAES-256-GCM" | "ML-KEM-768") | null;
                        associated_data?: Uint8Array | null;
                        context?: Uint8Array | null;
                        format?: ("ciphertext" | "envelope") | null;
                        keyring?: string | null;
                    } | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ReEncryptBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    unwrap_by_short_path: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    key_version: number;
                    keyring?: string | null;
                    wrapped_key: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Unwrapped"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    wrap_by_short_path: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Kyber768" | "X-Wing" | "XAES-256-GCM" | "ML-KEM-768") | null;
                    associated_data?: Uint8Array | null;
                    key_version: number;
                    keyring?: string | null;
                    symmetric_key: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Wrapped"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_jwks: {
        parameters: {
            query?: {
                keyring?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/jwk-set+json": components["schemas"]["JwkSet"];
                };
            };
        };
    };
    list_keyrings: {
        parameters: {
            query?: {
                after?: string;
                algorithm?: string;
                created_before?: string;
                created_since?: string;
                deleted?: boolean;
                label?: string;
                limit?: number;
                name?: string;
                offset?: number;
                prefix?: string;
                rotated?: boolean;
                sort?: "name" | "-name" | "created" | "-created" | "last-used" | "-last-used" | "rotation" | "-rotation";
                unused_since?: string;
                used_since?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Keyrings"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    create_keyring: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    archive_after_days?: number | null;
                    deletion_allowed?: boolean | null;
                    derived?: boolean | null;
                    description?: string | null;
                    first_version?: number | null;
                    labels?: {
                        [key: string]: string;
                    } | null;
                    minimum_decryption_version?: number | null;
                    minimum_encryption_version?: number | null;
                    name: string;
                    purposes?: ("encrypt" | "decrypt" | "wrap" | "unwrap" | "encapsulate" | "decapsulate" | "sign" | "verify" | "mac")[] | null;
                    retired_public_keys_allowed?: boolean | null;
                    rotation_days?: number | null;
                    transit_type?: string | null;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Keyring"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_keyring: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Keyring"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    delete_keyring: {
        parameters: {
            query?: {
                delay_days?: number;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Keyring"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    update_keyring: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    archive_after_days?: number | null;
                    deletion_allowed?: boolean | null;
                    description?: string | null;
                    label_changes?: {
                        [key: string]: string | null;
                    } | null;
                    labels?: {
                        [key: string]: string;
                    } | null;
                    minimum_decryption_version?: number | null;
                    minimum_encryption_version?: number | null;
                    purposes?: ("encrypt" | "decrypt" | "wrap" | "unwrap" | "encapsulate" | "decapsulate" | "sign" | "verify" | "mac")[] | null;
                    retired_public_keys_allowed?: boolean | null;
                    rotation_days?: number | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Keyring"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    restore_keyring: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Keyring"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_keys: {
        parameters: {
            query?: {
                after?: string;
                algorithm?: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                all_keyrings?: boolean;
                keyring?: string;
                legacy?: boolean;
                limit?: number;
                scheduled?: boolean;
                status?: "active" | "retired" | "disabled" | "archived";
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Keys"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_key: {
        parameters: {
            query: {
                algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                keyring?: string;
            };
            header?: never;
            path: {
                key_version: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_public_key: {
        parameters: {
            query: {
                algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                format?: "raw" | "pem" | "der" | "jwk" | "age";
                keyring?: string;
            };
            header?: never;
            path: {
                key_version: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["FormattedPublicKey"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_key_usage: {
        parameters: {
            query: {
                algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                keyring?: string;
            };
            header?: never;
            path: {
                key_version: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["KeyUsage"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_active_key: {
        parameters: {
            query: {
                algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                keyring?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    archive_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                    delay_days?: number | null;
                    key_version: number;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    cancel_archive: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                    key_version: number;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    disable_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                    key_version: number;
                    keyring?: string | null;
                    until?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    enable_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                    key_version: number;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    generate_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "ML-KEM-768" | "ML-DSA-65";
                    if_absent?: boolean | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    import_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                    /** Format: uuid */
                    import_key_id: string;
                    keyring?: string | null;
                    wrapped_private_key: Uint8Array;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_import_key: {
        parameters: {
            query: {
                algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                keyring?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ImportKey"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    retire_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                    key_version: number;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Key"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    rotate_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    algorithm: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "ML-KEM-768" | "ML-DSA-65";
                    keyring?: string | null;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RotatedKey"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_key_usage: {
        parameters: {
            query?: {
                after?: string;
                algorithm?: "Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-KEM-768" | "ML-DSA-65";
                keyring?: string;
                legacy?: boolean;
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["KeyUsages"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    compute_mac: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("HMAC-SHA-256" | "HMAC-SHA-512") | null;
                    key_version?: number | null;
                    keyring?: string | null;
                    message: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ComputedMac"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    compute_mac_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("HMAC-SHA-256" | "HMAC-SHA-512") | null;
                    items: {
                        algorithm?: ("HMAC-SHA-256" | "HMAC-SHA-512") | null;
                        key_version?: number | null;
                        keyring?: string | null;
                        message: Uint8Array;
                        reference?: string | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ComputeMacBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify_mac: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("HMAC-SHA-256" | "HMAC-SHA-512") | null;
                    key_version: number;
                    keyring?: string | null;
                    mac: Uint8Array;
                    message: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["VerifiedMac"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify_mac_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("HMAC-SHA-256" | "HMAC-SHA-512") | null;
                    items: {
                        algorithm?: ("HMAC-SHA-256" | "HMAC-SHA-512") | null;
                        key_version: number;
                        keyring?: string | null;
                        mac: Uint8Array;
                        message: Uint8Array;
                        reference?: string | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                    mac?: Uint8Array | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["VerifyMacBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_notices: {
        parameters: {
            query?: {
                limit?: number;
                state?: "open" | "closed";
                tenant_id?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["NoticesData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_notice_settings: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["NoticeSettingsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_operators: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["OperatorsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_operator_sessions: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["OperatorSessionsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    end_operator_session: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SignedOutData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_rules: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RulesData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_rule: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RuleData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    preview_rules: {
        parameters: {
            query?: {
                algorithms?: string;
                keyrings?: string;
                name?: string;
                profile?: "cnsa-2.0" | "eu-hybrid";
                uses?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["PreviewData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_rule_profiles: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ProfilesData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    search: {
        parameters: {
            query: {
                text: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SearchData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_jws: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "ML-DSA-87" | "ML-DSA-65") | null;
                    detached?: boolean | null;
                    key_version?: number | null;
                    keyring?: string | null;
                    payload: Uint8Array;
                    typ?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SignedJws"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "ML-DSA-65") | null;
                    context?: Uint8Array | null;
                    key_version?: number | null;
                    keyring?: string | null;
                    message: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Signed"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_hash: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "ML-DSA-65") | null;
                    hash: Uint8Array;
                    /** @enum {string} */
                    hash_algorithm: "SHA-256" | "SHA-384" | "SHA-512";
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SignedHash"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_hash_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "ML-DSA-65") | null;
                    hash?: Uint8Array | null;
                    hash_algorithm?: ("SHA-256" | "SHA-384" | "SHA-512") | null;
                    items: {
                        algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "ML-DSA-65") | null;
                        hash: Uint8Array;
                        /** @enum {string} */
                        hash_algorithm: "SHA-256" | "SHA-384" | "SHA-512";
                        key_version?: number | null;
                        keyring?: string | null;
                        reference?: string | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SignHashBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_mu: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "ML-DSA-87" | "ML-DSA-65") | null;
                    key_version?: number | null;
                    keyring?: string | null;
                    mu: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Signed"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_mu_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "ML-DSA-87" | "ML-DSA-65") | null;
                    items: {
                        algorithm?: ("Dilithium3" | "ML-DSA-87" | "ML-DSA-65") | null;
                        key_version?: number | null;
                        keyring?: string | null;
                        mu: Uint8Array;
                        reference?: string | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                    mu?: Uint8Array | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SignMuBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    sign_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "ML-DSA-65") | null;
                    context?: Uint8Array | null;
                    items: {
                        algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "ML-DSA-65") | null;
                        context?: Uint8Array | null;
                        key_version?: number | null;
                        keyring?: string | null;
                        message: Uint8Array;
                        reference?: string | null;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["SignBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-DSA-65") | null;
                    context?: Uint8Array | null;
                    key_version?: number;
                    keyring?: string | null;
                    message: Uint8Array;
                    public_key?: (string | Record<string, never>) | null;
                    signature: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Verified"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify_hash: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-DSA-65") | null;
                    hash: Uint8Array;
                    /** @enum {string} */
                    hash_algorithm: "SHA-256" | "SHA-384" | "SHA-512";
                    key_version?: number;
                    keyring?: string | null;
                    public_key?: (string | Record<string, never>) | null;
                    signature: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["VerifiedHash"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify_hash_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-DSA-65") | null;
                    hash?: Uint8Array | null;
                    hash_algorithm?: ("SHA-256" | "SHA-384" | "SHA-512") | null;
                    items: {
                        algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-DSA-65") | null;
                        hash: Uint8Array;
                        /** @enum {string} */
                        hash_algorithm: "SHA-256" | "SHA-384" | "SHA-512";
                        key_version?: number;
                        keyring?: string | null;
                        public_key?: (string | Record<string, never>) | null;
                        reference?: string | null;
                        signature: Uint8Array;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["VerifyHashBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify_mu: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "ML-DSA-87" | "ML-DSA-65") | null;
                    key_version?: number;
                    keyring?: string | null;
                    mu: Uint8Array;
                    public_key?: (string | Record<string, never>) | null;
                    signature: Uint8Array;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Verified"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify_mu_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "ML-DSA-87" | "ML-DSA-65") | null;
                    items: {
                        algorithm?: ("Dilithium3" | "ML-DSA-87" | "ML-DSA-65") | null;
                        key_version?: number;
                        keyring?: string | null;
                        mu: Uint8Array;
                        public_key?: (string | Record<string, never>) | null;
                        reference?: string | null;
                        signature: Uint8Array;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                    mu?: Uint8Array | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["VerifyMuBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    verify_batch: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-DSA-65") | null;
                    context?: Uint8Array | null;
                    items: {
                        algorithm?: ("Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521" | "ML-DSA-65") | null;
                        context?: Uint8Array | null;
                        key_version?: number;
                        keyring?: string | null;
                        message: Uint8Array;
                        public_key?: (string | Record<string, never>) | null;
                        reference?: string | null;
                        signature: Uint8Array;
                    }[];
                    key_version?: number | null;
                    keyring?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["VerifyBatch"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_invitations: {
        parameters: {
            query?: {
                after?: string;
                email?: string;
                expires_before?: string;
                limit?: number;
                offset?: number;
                role?: string;
                sort?: "expires" | "-expires" | "email" | "-email" | "role" | "-role";
                tenant_id?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["PendingInvitationsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    withdraw_invitation: {
        parameters: {
            query?: {
                tenant_id?: string;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RemovedData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_members: {
        parameters: {
            query?: {
                after?: string;
                email?: string;
                joined_before?: string;
                joined_since?: string;
                limit?: number;
                mfa?: boolean;
                not_signed_in_since?: string;
                offset?: number;
                role?: string;
                signed_in_since?: string;
                sort?: "email" | "-email" | "role" | "-role" | "mfa" | "-mfa" | "last-sign-in" | "-last-sign-in" | "joined" | "-joined";
                tenant_id?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["MembersData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    remove_member: {
        parameters: {
            query?: {
                tenant_id?: string;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RemovedData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    change_role: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @enum {string} */
                    role: "owner" | "admin" | "developer" | "viewer";
                    tenant_id?: string | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["MemberData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_tenants: {
        parameters: {
            query?: {
                after?: string;
                created_before?: string;
                created_since?: string;
                limit?: number;
                name?: string;
                offset?: number;
                plan?: string;
                sort?: "created" | "-created" | "name" | "-name" | "status" | "-status" | "tier" | "-tier" | "rate" | "-rate";
                status?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["TenantsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    create_tenant: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    name: string;
                    plan?: ("free" | "starter" | "professional" | "enterprise" | "enterprise_plus") | null;
                    shard?: string | null;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["TenantData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_tenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["TenantData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    delete_tenant: {
        parameters: {
            query?: {
                days?: number;
            };
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["TenantData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    change_tenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    plan?: ("free" | "starter" | "professional" | "enterprise" | "enterprise_plus") | null;
                    requests_per_minute?: (number | "plan") | null;
                    status?: ("active" | "suspended") | null;
                    subscription?: ("active" | "ended") | null;
                    tier?: ("free" | "starter" | "growth" | "professional" | "enterprise" | "enterprise_plus") | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["TenantData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_api_keys: {
        parameters: {
            query?: {
                created_before?: string;
                created_since?: string;
                details?: boolean;
                expires_before?: string;
                limit?: number;
                may_use?: string;
                name?: string;
                offset?: number;
                scope?: string;
                sort?: "status" | "-status" | "name" | "-name" | "version" | "-version" | "created" | "-created" | "last-used" | "-last-used" | "expires" | "-expires";
                status?: string;
                unused_since?: string;
                used_since?: string;
                version?: number;
            };
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ApiKeysData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    create_api_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": {
                    allow_absent_keyrings?: boolean | null;
                    allowed_addresses?: string[] | null;
                    expires_at?: string | null;
                    name?: string | null;
                    scopes?: {
                        algorithms?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521")[] | null;
                        keyrings?: string[] | null;
                        operations?: ("*" | "use" | "encrypt-only" | "decrypt-only" | "verify-only" | "manage-keys" | "delete-keyrings" | "campaigns" | "inventory" | "administer" | "compute-mac" | "decapsulate" | "decrypt" | "encapsulate" | "encrypt" | "generate-data-key" | "generate-random" | "get-active-key" | "get-key" | "get-keyring" | "hash" | "list-keyrings" | "list-keys" | "list-public-keys" | "list-rules" | "re-encrypt" | "sign" | "sign-hash" | "sign-jws" | "sign-mu" | "unwrap" | "verify" | "verify-hash" | "verify-mac" | "verify-mu" | "wrap" | "cancel-archive" | "close-campaign" | "create-keyring" | "disable-key" | "enable-key" | "generate-key" | "get-campaign" | "get-import-key" | "import-key" | "list-campaigns" | "put-campaign" | "restore-keyring" | "retire-key" | "rotate-key" | "update-keyring" | "add-campaign-scan" | "delete-keyring" | "get-cbom" | "list-external-keys" | "list-inventory" | "list-uses" | "preview-rules" | "count-audit-records" | "create-api-key" | "export-audit-log" | "get-audit-note" | "get-audit-tlog-proof" | "get-limits" | "get-subscription" | "get-tenant" | "get-usage" | "import-external-keys" | "list-api-keys" | "list-audit-checkpoints" | "list-audit-keys" | "list-audit-records" | "list-audit-witnesses" | "list-notice-settings" | "list-notices" | "list-tenants" | "list-webhook-deliveries" | "list-webhooks" | "list-workloads" | "prove-audit-consistency" | "prove-audit-record" | "remove-external-keys" | "resend-webhook-delivery" | "revoke-api-key" | "rotate-api-key" | "test-webhook")[] | null;
                    }[] | null;
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["NewApiKeyData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    revoke_api_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
                version: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["ApiKeyData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    rotate_api_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": {
                    allow_absent_keyrings?: boolean | null;
                    allowed_addresses?: string[] | null;
                    expires_at?: string | null;
                    key_id?: string | null;
                    name?: string | null;
                    overlap_seconds?: number | null;
                    scopes?: {
                        algorithms?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521")[] | null;
                        keyrings?: string[] | null;
                        operations?: ("*" | "use" | "encrypt-only" | "decrypt-only" | "verify-only" | "manage-keys" | "delete-keyrings" | "campaigns" | "inventory" | "administer" | "compute-mac" | "decapsulate" | "decrypt" | "encapsulate" | "encrypt" | "generate-data-key" | "generate-random" | "get-active-key" | "get-key" | "get-keyring" | "hash" | "list-keyrings" | "list-keys" | "list-public-keys" | "list-rules" | "re-encrypt" | "sign" | "sign-hash" | "sign-jws" | "sign-mu" | "unwrap" | "verify" | "verify-hash" | "verify-mac" | "verify-mu" | "wrap" | "cancel-archive" | "close-campaign" | "create-keyring" | "disable-key" | "enable-key" | "generate-key" | "get-campaign" | "get-import-key" | "import-key" | "list-campaigns" | "put-campaign" | "restore-keyring" | "retire-key" | "rotate-key" | "update-keyring" | "add-campaign-scan" | "delete-keyring" | "get-cbom" | "list-external-keys" | "list-inventory" | "list-uses" | "preview-rules" | "count-audit-records" | "create-api-key" | "export-audit-log" | "get-audit-note" | "get-audit-tlog-proof" | "get-limits" | "get-subscription" | "get-tenant" | "get-usage" | "import-external-keys" | "list-api-keys" | "list-audit-checkpoints" | "list-audit-keys" | "list-audit-records" | "list-audit-witnesses" | "list-notice-settings" | "list-notices" | "list-tenants" | "list-webhook-deliveries" | "list-webhooks" | "list-workloads" | "prove-audit-consistency" | "prove-audit-record" | "remove-external-keys" | "resend-webhook-delivery" | "revoke-api-key" | "rotate-api-key" | "test-webhook")[] | null;
                    }[] | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RotatedApiKey"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    cancel_tenant_deletion: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["TenantData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    invite: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    email: string;
                    /** @enum {string} */
                    role: "owner" | "admin" | "developer" | "viewer";
                };
            };
        };
        responses: {
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["InvitationData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_workloads: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WorkloadsData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    put_workload_issuer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                issuer: string;
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    algorithms: ("ES256" | "RS256" | "PS256" | "EdDSA" | "ML-DSA-44" | "ML-DSA-65" | "ML-DSA-87")[];
                    audience: string;
                    jwks?: (Record<string, never> | string) | null;
                    url: string;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WorkloadIssuerData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WorkloadIssuerData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    remove_workload_issuer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                issuer: string;
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RemovedWorkload"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    put_workload_role: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                role: string;
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    allow_absent_keyrings?: boolean | null;
                    claims: {
                        [key: string]: string | string[];
                    };
                    issuer: string;
                    lifetime_seconds?: number | null;
                    scopes: {
                        algorithms?: ("Kyber768" | "X-Wing" | "ML-KEM-1024" | "Dilithium3" | "Composite-ML-DSA" | "ML-DSA-87" | "SLH-DSA-SHA2-128s" | "SLH-DSA-SHA2-128f" | "SLH-DSA-SHA2-192s" | "SLH-DSA-SHA2-256s" | "XAES-256-GCM" | "HMAC-SHA-256" | "HMAC-SHA-512" | "RSA-OAEP-SHA-1" | "RSA-OAEP-SHA-256" | "RSA-OAEP-SHA-384" | "RSA-OAEP-SHA-512" | "RSA-PKCS1-SHA-256" | "RSA-PKCS1-SHA-384" | "RSA-PKCS1-SHA-512" | "RSA-PSS-SHA-256" | "RSA-PSS-SHA-384" | "RSA-PSS-SHA-512" | "ECDSA-P-256" | "ECDSA-P-384" | "ECDSA-P-521")[] | null;
                        keyrings?: string[] | null;
                        operations?: ("*" | "use" | "encrypt-only" | "decrypt-only" | "verify-only" | "manage-keys" | "delete-keyrings" | "campaigns" | "inventory" | "administer" | "compute-mac" | "decapsulate" | "decrypt" | "encapsulate" | "encrypt" | "generate-data-key" | "generate-random" | "get-active-key" | "get-key" | "get-keyring" | "hash" | "list-keyrings" | "list-keys" | "list-public-keys" | "list-rules" | "re-encrypt" | "sign" | "sign-hash" | "sign-jws" | "sign-mu" | "unwrap" | "verify" | "verify-hash" | "verify-mac" | "verify-mu" | "wrap" | "cancel-archive" | "close-campaign" | "create-keyring" | "disable-key" | "enable-key" | "generate-key" | "get-campaign" | "get-import-key" | "import-key" | "list-campaigns" | "put-campaign" | "restore-keyring" | "retire-key" | "rotate-key" | "update-keyring" | "add-campaign-scan" | "delete-keyring" | "get-cbom" | "list-external-keys" | "list-inventory" | "list-uses" | "preview-rules" | "count-audit-records" | "create-api-key" | "export-audit-log" | "get-audit-note" | "get-audit-tlog-proof" | "get-limits" | "get-subscription" | "get-tenant" | "get-usage" | "import-external-keys" | "list-api-keys" | "list-audit-checkpoints" | "list-audit-keys" | "list-audit-records" | "list-audit-witnesses" | "list-notice-settings" | "list-notices" | "list-tenants" | "list-webhook-deliveries" | "list-webhooks" | "list-workloads" | "prove-audit-consistency" | "prove-audit-record" | "remove-external-keys" | "resend-webhook-delivery" | "revoke-api-key" | "rotate-api-key" | "test-webhook")[] | null;
                    }[];
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WorkloadRoleData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WorkloadRoleData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    remove_workload_role: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                role: string;
                tenant_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RemovedWorkload"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    hash: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    data: Uint8Array;
                    hash_algorithm?: ("SHA-224" | "SHA-256" | "SHA-384" | "SHA-512" | "SHA3-224" | "SHA3-256" | "SHA3-384" | "SHA3-512") | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["HashedData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    generate_random: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": {
                    size?: number | null;
                };
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["RandomData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    get_usage: {
        parameters: {
            query?: {
                period?: "24h" | "30d";
                tenant_id?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["UsageData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_webhooks: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["WebhooksData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    list_webhook_deliveries: {
        parameters: {
            query?: {
                after?: string;
                limit?: number;
            };
            header?: never;
            path: {
                webhook: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["DeliveriesData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    resend_webhook_delivery: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                delivery: string;
                webhook: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["DeliveryData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    test_webhook: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                webhook: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["DeliveryData"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
    check_health: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        data: components["schemas"]["Health"];
                        request_id: string;
                        /** Format: date-time */
                        timestamp: string;
                    };
                };
            };
        };
    };
}
