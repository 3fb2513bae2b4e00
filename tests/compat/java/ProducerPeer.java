import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;

/** What producers do beyond plain sends, by the official client; one line a result, fields separated by tabs. */
public class ProducerPeer {
    public static void main(String[] args) {
        try {
            switch (args[0]) {
                case "send":
                    for (String mode : args[3].split(",")) send(args[1], args[2], mode, Integer.parseInt(args[4]));
                    break;
                case "orderly": orderly(args[1], args[2], args[3], Integer.parseInt(args[4])); break;
                case "ids": ids(args[1].split(",")); break;
                default: throw new IllegalArgumentException(args[0]);
            }
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
        System.exit(0);
    }

    static long crc(byte[] body) {
        CRC32 sum = new CRC32();
        sum.update(body);
        return sum.getValue();
    }

    /** mode: ZLIB, LZ4, ZSTD (bodies of 9 kB), batch, auto, hash (by key k0 to k6). */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void send(String nameServer, String topic, String mode, int count) throws Exception {
        boolean large = mode.equals(mode.toUpperCase());
        DefaultMQProducer producer = new DefaultMQProducer("java-producer", Peer.credentials());
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000); // a JVM that warms up beside others takes more than 3 s
        if (mode.equals("auto")) producer.getClass().getMethod("setAutoBatch", boolean.class).invoke(producer, true); // 5.x
        if (large) { // 5.x
            Class type = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
            producer.getClass().getMethod("setCompressType", type).invoke(producer, Enum.valueOf(type, mode));
        }
        producer.start();
        CountDownLatch pending = new CountDownLatch(mode.equals("auto") ? count : 0);
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            StringBuilder text = new StringBuilder("body-" + i + "-");
            while (text.length() < (large ? 9000 : 30)) text.append("0123456789");
            Message message = new Message(topic, "TagJ", "key-" + i, text.toString().getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", String.valueOf(i));
            message.putUserProperty("crc", String.valueOf(crc(message.getBody())));
            switch (mode) {
                case "ZLIB": case "LZ4": case "ZSTD": print(producer.send(message), mode, i); break;
                case "hash": print(producer.send(message, new SelectMessageQueueByHash(), "k" + i % 7), mode, i); break;
                case "batch": batch.add(message); break;
                case "auto":
                    final int number = i;
                    producer.send(message, new SendCallback() {
                        public void onSuccess(SendResult result) { print(result, mode, number); pending.countDown(); }
                        public void onException(Throwable error) { error.printStackTrace(); System.exit(3); }
                    });
                    break;
                default: throw new IllegalArgumentException(mode);
            }
        }
        if (mode.equals("batch")) print(producer.send(batch), mode, 0);
        if (!pending.await(30, TimeUnit.SECONDS)) throw new IllegalStateException("sends were not answered");
        producer.shutdown();
        System.out.println("COMPLETE\t" + count);
    }

    static synchronized void print(SendResult result, String mode, int number) {
        System.out.println("SENT\t" + result.getSendStatus() + "\t" + result.getMsgId() + "\t" + result.getMessageQueue().getQueueId() + "\t"
            + result.getQueueOffset() + "\t" + mode + "\t" + number);
    }

    /** Consume in order; GOT id, queue, offset, body length, CRC-32 of the body, tag, keys, sharding key, the first 32 bytes of the body. */
    static void orderly(String nameServer, String topic, String group, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, Peer.credentials(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch missing = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                byte[] body = message.getBody();
                String start = new String(body, 0, Math.min(32, body.length), StandardCharsets.UTF_8);
                synchronized (ProducerPeer.class) {
                    System.out.println("GOT\t" + message.getMsgId() + "\t" + message.getQueueId() + "\t" + message.getQueueOffset() + "\t"
                        + body.length + "\t" + crc(body) + "\t" + message.getTags() + "\t" + message.getKeys() + "\t"
                        + message.getProperty("__SHARDINGKEY") + "\t" + start);
                }
                if (seen.add(message.getMsgId())) missing.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        boolean complete = missing.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        System.out.println((complete ? "COMPLETE\t" : "INCOMPLETE\t") + seen.size());
        System.out.flush();
        if (!complete) System.exit(4);
    }

    /** What Java reads from unique ids: address and time in ms (which it takes for one of this month). */
    static void ids(String[] ids) {
        for (String id : ids) {
            System.out.println("FOUND\t" + id + "\t" + MessageClientIDSetter.getIPStrFromID(id) + "\t"
                + MessageClientIDSetter.getNearlyTimeFromID(id).getTime());
        }
        System.out.println("OWN\t" + MessageClientIDSetter.createUniqID());
    }
}
