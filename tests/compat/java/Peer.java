import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** The official client as a program: every verb prints one line a result, fields separated by tabs. */
public class Peer {
    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
        System.exit(0);
    }

    static void run(String[] args) throws Exception {
        switch (args[0]) {
            case "send": send(args[1], args[2], Integer.parseInt(args[3]), args[4], args[5]); break;
            case "consume": consume(args[1], args[2], args[3], args[4], Integer.parseInt(args[5]), Integer.parseInt(args[6])); break;
            case "drain": drain(args[1], args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5])); break;
            case "unique": unique(args[1], args[2], args[3]); break;
            case "query": query(args[1], args[2], args[3]); break;
            case "sign": sign(args); break;
            default: throw new IllegalArgumentException(args[0]);
        }
    }

    /** The signing hook for the system properties peer.accessKey, peer.secretKey and peer.securityToken, or the environment's PEER_ACCESS_KEY and PEER_SECRET_KEY; null without them. */
    static RPCHook credentials() {
        String accessKey = System.getProperty("peer.accessKey", System.getenv("PEER_ACCESS_KEY"));
        if (accessKey == null) return null;
        String token = System.getProperty("peer.securityToken");
        String secretKey = System.getProperty("peer.secretKey", System.getenv("PEER_SECRET_KEY"));
        return new AclClientRPCHook(token == null ? new SessionCredentials(accessKey, secretKey) : new SessionCredentials(accessKey, secretKey, token));
    }

    /** The namespace of the system property peer.namespace, or peer.namespaceV2, which 4.9 does not have. */
    static void enterNamespace(ClientConfig client) throws Exception {
        String namespace = System.getProperty("peer.namespace");
        if (namespace != null) client.setNamespace(namespace);
        String second = System.getProperty("peer.namespaceV2");
        if (second != null) ClientConfig.class.getMethod("setNamespaceV2", String.class).invoke(client, second);
    }

    /** sign BODY NAME=VALUE ...: the signature that the client's own hook gives to such a request. */
    static void sign(String[] args) {
        RemotingCommand request = RemotingCommand.createRequestCommand(10, null);
        request.setBody(args[1].getBytes(StandardCharsets.UTF_8));
        for (int i = 2; i < args.length; i++) {
            int equals = args[i].indexOf('=');
            request.addExtField(args[i].substring(0, equals), args[i].substring(equals + 1));
        }
        credentials().doBeforeRequest("127.0.0.1:1", request);
        System.out.println("FOUND\t" + request.getExtFields().get("Signature"));
    }

    /** mode: sync, async, oneway, batch. */
    static void send(String nameServer, String topic, int count, String tag, String mode) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-producer", credentials());
        enterNamespace(producer);
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000); // a JVM that warms up beside others takes more than 3 s
        producer.start();
        CountDownLatch pending = new CountDownLatch(mode.equals("async") ? count : 0);
        List<Message> batch = new java.util.ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, tag, "java-" + i, ("body-" + i).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", String.valueOf(i));
            switch (mode) {
                case "sync": print(producer.send(message)); break;
                case "oneway": producer.sendOneway(message); break;
                case "batch": batch.add(message); break;
                case "async":
                    producer.send(message, new SendCallback() {
                        public void onSuccess(SendResult result) { print(result); pending.countDown(); }
                        public void onException(Throwable error) { error.printStackTrace(); System.exit(3); }
                    });
                    break;
                default: throw new IllegalArgumentException(mode);
            }
        }
        if (mode.equals("batch")) print(producer.send(batch));
        if (!pending.await(30, TimeUnit.SECONDS)) throw new IllegalStateException("async sends were not answered");
        producer.shutdown();
    }

    static synchronized void print(SendResult result) {
        System.out.println("SENT\t" + result.getSendStatus() + "\t" + result.getMsgId() + "\t" + result.getOffsetMsgId() + "\t"
            + result.getMessageQueue().getBrokerName() + "\t" + result.getMessageQueue().getQueueId() + "\t" + result.getQueueOffset());
    }

    static void consume(String nameServer, String topic, String group, String expression, int count, int seconds) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, credentials(), new AllocateMessageQueueAveragely());
        enterNamespace(consumer);
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(Integer.getInteger("peer.pollNameServer", consumer.getPollNameServerInterval()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // The last listener returns after the latch has opened: without this wait its offset would not be stored.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.setHeartbeatBrokerInterval(Integer.getInteger("peer.heartbeatMillis", 30_000));
        if (expression.startsWith("sql:")) consumer.subscribe(topic, MessageSelector.bySql(expression.substring(4)));
        else consumer.subscribe(topic, expression);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch missing = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                synchronized (Peer.class) {
                    System.out.println("GOT\t" + message.getMsgId() + "\t" + message.getTags() + "\t" + message.getKeys() + "\t"
                        + message.getQueueId() + "\t" + message.getQueueOffset() + "\t" + message.getReconsumeTimes() + "\t"
                        + new String(message.getBody(), StandardCharsets.UTF_8).replace('\t', ' ').replace('\n', ' '));
                }
                if (seen.add(message.getMsgId())) missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("STARTED");
        boolean complete = missing.await(seconds, TimeUnit.SECONDS);
        // Once before the end, too: of what is stored at the end Java's client now and then loses a queue.
        Thread.sleep(300);
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Thread.sleep(200);
        consumer.shutdown();
        System.out.println((complete ? "COMPLETE\t" : "INCOMPLETE\t") + seen.size());
        System.out.flush();
        if (!complete) System.exit(4);
    }

    /** Read until so many distinct messages were seen; print their number and how many came twice. */
    static void drain(String nameServer, String topic, String group, int count, int seconds) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, credentials(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger delivered = new AtomicInteger();
        CountDownLatch missing = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                delivered.incrementAndGet();
                if (seen.add(message.getQueueId() + "-" + message.getQueueOffset() + "-" + message.getMsgId())) missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long start = System.nanoTime();
        consumer.start();
        boolean complete = missing.await(seconds, TimeUnit.SECONDS);
        double spent = (System.nanoTime() - start) / 1e9;
        consumer.shutdown();
        System.out.println((complete ? "COMPLETE\t" : "INCOMPLETE\t") + seen.size() + "\t" + delivered.get() + "\t" + spent);
        System.out.flush();
        if (!complete) System.exit(4);
    }

    static void query(String nameServer, String topic, String keys) throws Exception {
        DefaultMQPushConsumer admin = new DefaultMQPushConsumer("java-query", credentials(), new AllocateMessageQueueAveragely());
        admin.setNamesrvAddr(nameServer);
        admin.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        admin.start();
        AtomicInteger found = new AtomicInteger();
        for (String key : keys.split(",")) {
            QueryResult result = admin.queryMessage(topic, key, 32, 0, System.currentTimeMillis() + 60_000);
            for (MessageExt message : result.getMessageList()) {
                System.out.println("FOUND\t" + key + "\t" + message.getMsgId() + "\t" + new String(message.getBody(), StandardCharsets.UTF_8));
                found.incrementAndGet();
            }
        }
        admin.shutdown();
        System.out.println("COMPLETE\t" + found.get());
    }

    /** Look messages up by the unique key that every message has. */
    static void unique(String nameServer, String topic, String keys) throws Exception {
        DefaultMQPushConsumer admin = new DefaultMQPushConsumer("java-query", credentials(), new AllocateMessageQueueAveragely());
        admin.setNamesrvAddr(nameServer);
        admin.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        admin.start();
        int found = 0;
        for (String key : keys.split(",")) {
            MessageExt message = admin.getDefaultMQPushConsumerImpl().getmQClientFactory().getMQAdminImpl().queryMessageByUniqKey(topic, key);
            if (message == null) continue;
            System.out.println("FOUND\t" + key + "\t" + message.getMsgId() + "\t" + message.getQueueOffset());
            found++;
        }
        admin.shutdown();
        System.out.println("COMPLETE\t" + found);
    }
}
