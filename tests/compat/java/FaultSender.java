import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Locale;
import java.util.Random;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** A sender of a fault test by the official client: it writes the events of tests/support/fault_history.py until it is killed. */
public class FaultSender {
    /** Arguments: name servers, topic, file of the history, the sender's number. */
    public static void main(String[] args) {
        try {
            send(args);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
    }

    static void send(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("faults-java", Peer.credentials());
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(2_000);
        producer.setRetryTimesWhenSendFailed(0); // each attempt has an outcome of its own
        producer.start();
        Random random = new Random(7);
        try (FileOutputStream history = new FileOutputStream(args[2], true)) {
            for (int count = 0; ; count++) {
                String name = args[3] + "." + count;
                byte[] body = body(name, random.nextInt(1500));
                for (int attempt = 0; ; attempt++) {
                    note(history, "[\"begin\", %.6f, \"%s\", %d]", seconds(), name, attempt);
                    String outcome;
                    String place = "-1, -1, -1";
                    try {
                        SendResult result = producer.send(new Message(args[1], body));
                        outcome = outcome(result.getSendStatus());
                        String id = result.getOffsetMsgId();
                        place = result.getMessageQueue().getQueueId() + ", " + result.getQueueOffset() + ", "
                            + Long.parseLong(id.substring(id.length() - 16), 16);
                    } catch (MQClientException error) {
                        outcome = String.valueOf(error.getMessage()).startsWith("No route") ? "unsent" : "doubtful";
                    } catch (Exception error) {
                        outcome = "doubtful";
                    }
                    note(history, "[\"end\", %.6f, \"%s\", %d, \"%s\", %s]", seconds(), name, attempt, outcome, place);
                    if (outcome.equals("acknowledged")) break;
                    Thread.sleep(20);
                }
                Thread.sleep(2);
            }
        }
    }

    /** The machine's monotonic clock, which Python reads as well. */
    static double seconds() {
        return System.nanoTime() / 1e9;
    }

    static String outcome(SendStatus status) {
        switch (status) {
            case SEND_OK: return "acknowledged";
            case FLUSH_DISK_TIMEOUT: return "doubtful";
            default: return "stored";
        }
    }

    /** One write for each line: others write to the same file. */
    static void note(FileOutputStream history, String format, Object... words) throws Exception {
        history.write((String.format(Locale.ROOT, format, words) + "\n").getBytes(StandardCharsets.UTF_8));
    }

    /** As crash_loop.body_of makes it. */
    static byte[] body(String name, int size) throws Exception {
        String filler = "x".repeat(size);
        StringBuilder digest = new StringBuilder();
        for (byte one : MessageDigest.getInstance("SHA-256").digest(filler.getBytes(StandardCharsets.UTF_8)))
            digest.append(String.format("%02x", one));
        return (name + ":" + digest.substring(0, 16) + ":" + filler).getBytes(StandardCharsets.UTF_8);
    }
}
